package certificates

import (
	"context"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/skiff-k8s/skiff/api"
)

// certificateSigningRequests stamps conditions with now.
func certificateSigningRequests(now func() metav1.Time) *api.Resource {
	spec := certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()
	before := certificatesv1beta1.CertificateSigningRequestSpec{}.SwaggerDoc() // whose words upstream's columns have
	verbs := []string{"get", "patch", "update"}
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "CertificateSigningRequest", Plural: "certificatesigningrequests",
		ShortNames:  []string{"csr"},
		StoragePath: "certificatesigningrequests",
		New:         func() api.Object { return &certificatesv1.CertificateSigningRequest{} },
		NewList:     func() runtime.Object { return &certificatesv1.CertificateSigningRequestList{} },
		Strategy: api.Strategy{
			NameErrors: func(string, bool) []string { return nil },
			PrepareCreate: func(ctx context.Context, obj runtime.Object) {
				setRequester(ctx, obj.(*certificatesv1.CertificateSigningRequest))
			},
			Validate: api.Check(func(c *certificatesv1.CertificateSigningRequest) field.ErrorList {
				return validateCSR(c, nil)
			}),
			PrepareUpdate: api.OnUpdate(func(c, old *certificatesv1.CertificateSigningRequest) {
				c.Spec, c.Status = old.Spec, old.Status
			}),
			ValidateUpdate: api.CheckUpdate(func(c, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
				return validateCSRUpdate(c, old, mayChange{})
			}),
			IgnoredApplyPaths: []string{"spec", "status"},
		},
		Subresources: []api.Subresource{{
			Name: "approval", Verbs: verbs,
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(c, old *certificatesv1.CertificateSigningRequest) {
					stampConditions(c, old, now())
					conditions := c.Status.Conditions
					c.Spec, c.Status = old.Spec, old.Status
					c.Status.Conditions = conditions
				}),
				ValidateUpdate: api.CheckUpdate(func(c, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
					return validateCSRUpdate(c, old, mayChange{approval: true})
				}),
				IgnoredApplyPaths: []string{"spec", "status.certificate"},
			},
		}, {
			Name: "status", Verbs: verbs,
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(c, old *certificatesv1.CertificateSigningRequest) {
					c.Spec = old.Spec
					keepConditions(c, old, certificatesv1.CertificateApproved)
					keepConditions(c, old, certificatesv1.CertificateDenied)
					stampConditions(c, old, now())
				}),
				ValidateUpdate: api.CheckUpdate(func(c, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
					return validateCSRUpdate(c, old, mayChange{certificate: true})
				}),
				IgnoredApplyPaths: []string{"spec", "status.conditions"},
			},
		}},
		Fields: api.Selectable(func(c *certificatesv1.CertificateSigningRequest) fields.Set {
			return fields.Set{"spec.signerName": c.Spec.SignerName}
		}),
		FieldLabels: []string{"spec.signerName"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.AgeColumn(),
			api.Column("SignerName", "string", before["signerName"], 0),
			api.Column("Requestor", "string", before["request"], 0),
			api.Column("RequestedDuration", "string", spec["expirationSeconds"], 0),
			api.Column("Condition", "string", certificatesv1beta1.CertificateSigningRequestStatus{}.SwaggerDoc()["conditions"], 0),
		},
		Row: api.Cells(csrRow),
	}
}

func csrRow(c *certificatesv1.CertificateSigningRequest, now time.Time) []any {
	signer, lifetime := "<none>", "<none>"
	if c.Spec.SignerName != "" {
		signer = c.Spec.SignerName
	}
	if s := c.Spec.ExpirationSeconds; s != nil {
		lifetime = duration.HumanDuration(time.Duration(*s) * time.Second)
	}
	return []any{c.Name, api.Age(c.CreationTimestamp, now), signer, c.Spec.Username, lifetime, csrState(c)}
}

func csrState(c *certificatesv1.CertificateSigningRequest) string {
	state := "Pending"
	switch {
	case len(conditions(c, certificatesv1.CertificateDenied)) > 0:
		state = "Denied"
	case len(conditions(c, certificatesv1.CertificateApproved)) > 0:
		state = "Approved"
	}
	if len(conditions(c, certificatesv1.CertificateFailed)) > 0 {
		state += ",Failed"
	}
	if len(c.Status.Certificate) > 0 {
		state += ",Issued"
	}
	return state
}

// setRequester records who asks, whatever the request itself says: approvers trust it.
func setRequester(ctx context.Context, c *certificatesv1.CertificateSigningRequest) {
	c.Spec.Username, c.Spec.UID, c.Spec.Groups, c.Spec.Extra = "", "", nil, nil
	c.Status = certificatesv1.CertificateSigningRequestStatus{}
	user, ok := request.UserFrom(ctx)
	if !ok {
		return
	}
	c.Spec.Username, c.Spec.UID, c.Spec.Groups = user.GetName(), user.GetUID(), user.GetGroups()
	if extra := user.GetExtra(); len(extra) > 0 {
		c.Spec.Extra = make(map[string]certificatesv1.ExtraValue, len(extra))
		for k, v := range extra {
			c.Spec.Extra[k] = v
		}
	}
}

// conditions are the indexes of the conditions of a type.
func conditions(c *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) []int {
	var at []int
	for i := range c.Status.Conditions {
		if c.Status.Conditions[i].Type == t {
			at = append(at, i)
		}
	}
	return at
}

// keepConditions restores what a status update may not touch. Where conditions were added
// or removed it leaves them for validation to refuse.
func keepConditions(c, old *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) {
	now, before := conditions(c, t), conditions(old, t)
	if len(now) != len(before) {
		return
	}
	for i := range now {
		c.Status.Conditions[now[i]] = old.Status.Conditions[before[i]]
	}
}

// stampConditions fills in times that the client left out. A condition whose status did
// not change keeps its transition time.
func stampConditions(c, old *certificatesv1.CertificateSigningRequest, now metav1.Time) {
	for i := range c.Status.Conditions {
		n := &c.Status.Conditions[i]
		if n.LastUpdateTime.IsZero() {
			n.LastUpdateTime = now
		}
		if !n.LastTransitionTime.IsZero() {
			continue
		}
		n.LastTransitionTime = now
		for _, o := range old.Status.Conditions {
			if o.Type == n.Type && o.Status == n.Status && !o.LastTransitionTime.IsZero() {
				n.LastTransitionTime = o.LastTransitionTime
				break
			}
		}
	}
}
