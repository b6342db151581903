package core

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

const enforceMountableSecrets = "kubernetes.io/enforce-mountable-secrets"

func serviceAccounts() *api.Resource {
	return &api.Resource{
		Version: "v1", Kind: "ServiceAccount", Plural: "serviceaccounts", ShortNames: []string{"sa"},
		Namespaced: true, StoragePath: "serviceaccounts",
		New:     func() api.Object { return &v1.ServiceAccount{} },
		NewList: func() runtime.Object { return &v1.ServiceAccountList{} },
		Strategy: api.Strategy{
			NameErrors:     apivalidation.ValidateServiceAccountName,
			PrepareCreate:  api.OnCreate(keepSecretNames),
			Validate:       api.Check(func(*v1.ServiceAccount) field.ErrorList { return nil }),
			PrepareUpdate:  api.OnUpdate(func(s, _ *v1.ServiceAccount) { keepSecretNames(s) }),
			ValidateUpdate: api.CheckUpdate(func(_, _ *v1.ServiceAccount) field.ErrorList { return nil }),
			Warnings: api.Warn(func(s, old *v1.ServiceAccount) []string {
				if old != nil {
					if _, had := old.Annotations[enforceMountableSecrets]; had {
						return nil
					}
				}
				if _, has := s.Annotations[enforceMountableSecrets]; !has {
					return nil
				}
				return []string{fmt.Sprintf("metadata.annotations[%s]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets", enforceMountableSecrets)}
			}),
		},
		Columns: []metav1.TableColumnDefinition{api.NameColumn(), api.AgeColumn()},
		Row: api.Cells(func(s *v1.ServiceAccount, now time.Time) []any {
			return []any{s.Name, api.Age(s.CreationTimestamp, now)}
		}),
	}
}

// keepSecretNames drops everything but the name: secrets are the account's
// namespace's.
func keepSecretNames(s *v1.ServiceAccount) {
	for i := range s.Secrets {
		s.Secrets[i] = v1.ObjectReference{Name: s.Secrets[i].Name}
	}
}
