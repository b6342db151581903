package core

import (
	"crypto/tls"
	"encoding/json"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func secrets() *api.Resource {
	return &api.Resource{
		Version: "v1", Kind: "Secret", Plural: "secrets",
		Namespaced: true, StoragePath: "secrets",
		New:     func() api.Object { return &v1.Secret{} },
		NewList: func() runtime.Object { return &v1.SecretList{} },
		Default: api.Defaults(defaultSecret),
		Strategy: api.Strategy{
			Validate: api.Check(validateSecret),
			PrepareUpdate: api.OnUpdate(func(s, old *v1.Secret) {
				setIfEmpty(&s.Type, old.Type)
			}),
			ValidateUpdate: api.CheckUpdate(validateSecretUpdate),
			Warnings:       api.Warn(secretWarnings),
		},
		Fields: api.Selectable(func(s *v1.Secret) fields.Set {
			return fields.Set{"type": string(s.Type)}
		}),
		FieldLabels: []string{"type"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Type", "string", v1.Secret{}.SwaggerDoc()["type"], 0),
			api.Column("Data", "string", v1.Secret{}.SwaggerDoc()["data"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(s *v1.Secret, now time.Time) []any {
			return []any{s.Name, string(s.Type), int64(len(s.Data)), api.Age(s.CreationTimestamp, now)}
		}),
	}
}

// defaultSecret also moves stringData, which is write-only, into data.
func defaultSecret(s *v1.Secret) {
	setIfEmpty(&s.Type, v1.SecretTypeOpaque)
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = make(map[string][]byte, len(s.StringData))
	}
	for key, value := range s.StringData {
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
}

func validateSecret(s *v1.Secret) field.ErrorList {
	var errs field.ErrorList
	data := field.NewPath("data")
	size := 0
	for _, key := range sortedKeys(s.Data) {
		errs = append(errs, invalid(data.Key(key), key, validation.IsConfigMapKey(key))...)
		size += len(s.Data[key])
	}
	if size > maxDataSize {
		errs = append(errs, field.TooLong(data, "", maxDataSize))
	}
	need := func(key string) bool {
		if _, has := s.Data[key]; has {
			return true
		}
		errs = append(errs, field.Required(data.Key(key), ""))
		return false
	}
	switch s.Type {
	case v1.SecretTypeServiceAccountToken:
		if s.Annotations[v1.ServiceAccountNameKey] == "" {
			errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key(v1.ServiceAccountNameKey), ""))
		}
	case v1.SecretTypeDockercfg:
		if need(v1.DockerConfigKey) {
			errs = append(errs, jsonObject(s.Data[v1.DockerConfigKey], data.Key(v1.DockerConfigKey))...)
		}
	case v1.SecretTypeDockerConfigJson:
		if need(v1.DockerConfigJsonKey) {
			errs = append(errs, jsonObject(s.Data[v1.DockerConfigJsonKey], data.Key(v1.DockerConfigJsonKey))...)
		}
	case v1.SecretTypeBasicAuth:
		// Either may be left out, and may be empty.
		_, user := s.Data[v1.BasicAuthUsernameKey]
		_, password := s.Data[v1.BasicAuthPasswordKey]
		if !user && !password {
			need(v1.BasicAuthUsernameKey)
			need(v1.BasicAuthPasswordKey)
		}
	case v1.SecretTypeSSHAuth:
		if len(s.Data[v1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(data.Key(v1.SSHAuthPrivateKey), ""))
		}
	case v1.SecretTypeTLS:
		need(v1.TLSCertKey)
		need(v1.TLSPrivateKeyKey)
	}
	return errs
}

func jsonObject(content []byte, p *field.Path) field.ErrorList {
	if err := json.Unmarshal(content, &map[string]any{}); err != nil {
		return field.ErrorList{field.Invalid(p, "<secret contents redacted>", err.Error())}
	}
	return nil
}

func validateSecretUpdate(s, old *v1.Secret) field.ErrorList {
	errs := immutable(s.Type, old.Type, field.NewPath("type"))
	errs = append(errs, frozen(s.Immutable, old.Immutable, map[string]bool{
		"data": !equality.Semantic.DeepEqual(s.Data, old.Data),
	})...)
	return append(errs, validateSecret(s)...)
}

func secretWarnings(s, _ *v1.Secret) []string {
	if s.Type == v1.SecretTypeTLS {
		if _, err := tls.X509KeyPair(s.Data[v1.TLSCertKey], s.Data[v1.TLSPrivateKeyKey]); err != nil {
			return []string{err.Error()}
		}
	}
	return nil
}
