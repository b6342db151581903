package certificates

import (
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

const defaultExpirationSeconds = 24 * 60 * 60

// podCertificateRequests holds the times of what is issued against now. Who may change the
// status (sign) is the API server's to know.
func podCertificateRequests(now func() metav1.Time) *api.Resource {
	spec := certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "PodCertificateRequest", Plural: "podcertificaterequests", Namespaced: true,
		StoragePath:    "podcertificaterequests",
		StorageVersion: schema.GroupVersion{Group: groupVersion.Group, Version: "v1beta1"},
		New:            func() api.Object { return &certificatesv1.PodCertificateRequest{} },
		NewList:        func() runtime.Object { return &certificatesv1.PodCertificateRequestList{} },
		Default: api.Defaults(func(r *certificatesv1.PodCertificateRequest) {
			if r.Spec.MaxExpirationSeconds == nil {
				var s int32 = defaultExpirationSeconds
				r.Spec.MaxExpirationSeconds = &s
			}
		}),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(r *certificatesv1.PodCertificateRequest) {
				r.Status = certificatesv1.PodCertificateRequestStatus{}
			}),
			Validate: api.Check(func(r *certificatesv1.PodCertificateRequest) field.ErrorList {
				return validatePodRequest(&r.Spec, field.NewPath("spec"))
			}),
			PrepareUpdate: api.OnUpdate(func(r, old *certificatesv1.PodCertificateRequest) { r.Status = old.Status }),
			ValidateUpdate: api.CheckUpdate(func(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
				return apivalidation.ValidateImmutableField(r.Spec, old.Spec, field.NewPath("spec"))
			}),
			RequireRevision: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(r, old *certificatesv1.PodCertificateRequest) {
					r.Spec = old.Spec
					metav1.ResetObjectMetaForStatus(&r.ObjectMeta, &old.ObjectMeta)
				}),
				ValidateUpdate: api.CheckUpdate(func(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
					return validatePodRequestStatus(r, old, now().Time)
				}),
				RequireRevision:   true,
				IgnoredApplyPaths: []string{"metadata", "spec"},
			},
		}},
		Fields: api.Selectable(func(r *certificatesv1.PodCertificateRequest) fields.Set {
			return fields.Set{
				"spec.signerName": r.Spec.SignerName, "spec.podName": r.Spec.PodName, "spec.nodeName": string(r.Spec.NodeName),
			}
		}),
		FieldLabels: []string{"spec.signerName", "spec.podName", "spec.nodeName"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("PodName", "string", spec["podName"], 0),
			api.Column("ServiceAccountName", "string", spec["serviceAccountName"], 0),
			api.Column("NodeName", "string", spec["nodeName"], 0),
			api.Column("SignerName", "string", spec["signerName"], 0),
			api.Column("State", "string", "Is the request Pending, Issued, Denied, or Failed?", 0),
			api.Column("UnverifiedUserAnnotations", "string", spec["unverifiedUserAnnotations"], 0),
		},
		Row: api.Cells(func(r *certificatesv1.PodCertificateRequest, _ time.Time) []any {
			state := "Pending"
			for _, c := range r.Status.Conditions {
				if isOutcome(c.Type) {
					state = c.Type
				}
			}
			return []any{r.Name, r.Spec.PodName, r.Spec.ServiceAccountName, string(r.Spec.NodeName), r.Spec.SignerName, state,
				labels.FormatLabels(r.Spec.UnverifiedUserAnnotations)}
		}),
	}
}
