// Package apiregistration declares the resources of apiregistration.k8s.io.
//
// Owns: apiservices as objects. Must not: proxy to them or probe them.
package apiregistration

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

// Resources lists what the group serves.
func Resources() []*api.Resource { return []*api.Resource{apiServices(metav1.Now)} }

const (
	maxGroupPriority   = 20000
	maxVersionPriority = 1000
)

// apiServices stamps the condition of local services with now.
func apiServices(now func() metav1.Time) *api.Resource {
	return &api.Resource{
		Group: apiregistrationv1.GroupName, Version: "v1",
		Kind: "APIService", Plural: "apiservices",
		Categories:  []string{"api-extensions"},
		StoragePath: "apiregistration.k8s.io/apiservices", StoredAsJSON: true,
		New:     func() api.Object { return &apiregistrationv1.APIService{} },
		NewList: func() runtime.Object { return &apiregistrationv1.APIServiceList{} },
		Default: api.Defaults(func(s *apiregistrationv1.APIService) {
			if s.Spec.Service != nil && s.Spec.Service.Port == nil {
				s.Spec.Service.Port = ptr.To[int32](443)
			}
		}),
		Strategy: api.Strategy{
			// The name is <version>.<group>: validated with the object.
			NameErrors: func(string, bool) []string { return nil },
			PrepareCreate: api.OnCreate(func(s *apiregistrationv1.APIService) {
				s.Status = apiregistrationv1.APIServiceStatus{}
				if s.Spec.Service == nil {
					s.Status.Conditions = []apiregistrationv1.APIServiceCondition{{
						Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue,
						LastTransitionTime: now(), Reason: "Local", Message: "Local APIServices are always available",
					}}
				}
			}),
			Validate: api.Check(validateAPIService),
			PrepareUpdate: api.OnUpdate(func(s, old *apiregistrationv1.APIService) {
				s.Status = old.Status
			}),
			ValidateUpdate: api.CheckUpdate(func(s, _ *apiregistrationv1.APIService) field.ErrorList {
				return validateAPIService(s)
			}),
			RequireRevision: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(s, old *apiregistrationv1.APIService) {
					s.Spec = old.Spec
					s.Labels, s.Annotations = old.Labels, old.Annotations
					s.Finalizers, s.OwnerReferences = old.Finalizers, old.OwnerReferences
				}),
				ValidateUpdate: api.CheckUpdate(func(s, _ *apiregistrationv1.APIService) field.ErrorList {
					return validateConditions(s.Status.Conditions, field.NewPath("status", "conditions"))
				}),
				RequireRevision:   true,
				IgnoredApplyPaths: []string{"spec"},
			},
		}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Service", "string", "The reference to the service that hosts this API endpoint.", 0),
			api.Column("Available", "string", "Whether this service is available.", 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(s *apiregistrationv1.APIService, now time.Time) []any {
			service := "Local"
			if ref := s.Spec.Service; ref != nil {
				service = ref.Namespace + "/" + ref.Name
			}
			return []any{s.Name, service, available(s), api.Age(s.CreationTimestamp, now)}
		}),
	}
}

func available(s *apiregistrationv1.APIService) string {
	for _, c := range s.Status.Conditions {
		if c.Type != apiregistrationv1.Available {
			continue
		}
		if c.Status != apiregistrationv1.ConditionTrue && c.Reason != "" {
			return fmt.Sprintf("%s (%s)", c.Status, c.Reason)
		}
		return string(c.Status)
	}
	return string(apiregistrationv1.ConditionUnknown)
}

func validateAPIService(s *apiregistrationv1.APIService) field.ErrorList {
	var errs field.ErrorList
	p := field.NewPath("spec")
	if want := s.Spec.Version + "." + s.Spec.Group; s.Name != want {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), s.Name, fmt.Sprintf("must be `spec.version+\".\"+spec.group`: %q", want)))
	}
	if s.Spec.Group == "" && s.Spec.Version != "v1" {
		errs = append(errs, field.Required(p.Child("group"), "only v1 may have an empty group and it better be legacy kube"))
	}
	if s.Spec.Group != "" {
		for _, msg := range validation.IsDNS1123Subdomain(s.Spec.Group) {
			errs = append(errs, field.Invalid(p.Child("group"), s.Spec.Group, msg))
		}
	}
	for _, msg := range validation.IsDNS1035Label(s.Spec.Version) {
		errs = append(errs, field.Invalid(p.Child("version"), s.Spec.Version, msg))
	}
	if n := s.Spec.GroupPriorityMinimum; n <= 0 || n > maxGroupPriority {
		errs = append(errs, field.Invalid(p.Child("groupPriorityMinimum"), n, "must be positive and less than 20000"))
	}
	if n := s.Spec.VersionPriority; n <= 0 || n > maxVersionPriority {
		errs = append(errs, field.Invalid(p.Child("versionPriority"), n, "must be positive and less than 1000"))
	}
	return append(errs, validateService(&s.Spec, p)...)
}

func validateService(s *apiregistrationv1.APIServiceSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	insecure := p.Child("insecureSkipTLSVerify")
	if s.Service == nil {
		if n := len(s.CABundle); n > 0 {
			errs = append(errs, field.Invalid(p.Child("caBundle"), fmt.Sprintf("%d bytes", n), "local APIServices may not have a caBundle"))
		}
		if s.InsecureSkipTLSVerify {
			errs = append(errs, field.Invalid(insecure, true, "local APIServices may not have insecureSkipTLSVerify"))
		}
		return errs
	}
	sp := p.Child("service")
	if s.Service.Namespace == "" {
		errs = append(errs, field.Required(sp.Child("namespace"), ""))
	}
	if s.Service.Name == "" {
		errs = append(errs, field.Required(sp.Child("name"), ""))
	}
	port := ptr.Deref(s.Service.Port, 0)
	if msgs := validation.IsValidPortNum(int(port)); len(msgs) > 0 {
		errs = append(errs, field.Invalid(sp.Child("port"), port, "port is not valid: "+strings.Join(msgs, ", ")))
	}
	if s.InsecureSkipTLSVerify && len(s.CABundle) > 0 {
		errs = append(errs, field.Invalid(insecure, true, "may not be true if caBundle is present"))
	}
	return errs
}

func validateConditions(conditions []apiregistrationv1.APIServiceCondition, p *field.Path) field.ErrorList {
	valid := []apiregistrationv1.ConditionStatus{
		apiregistrationv1.ConditionTrue, apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown}
	var errs field.ErrorList
	for i := range conditions {
		if !slices.Contains(valid, conditions[i].Status) {
			errs = append(errs, field.NotSupported(p.Index(i).Child("status"), conditions[i].Status, valid))
		}
	}
	return errs
}
