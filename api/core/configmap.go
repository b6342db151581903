package core

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

// maxDataSize bounds the values of a ConfigMap or Secret in all.
const maxDataSize = v1.MaxSecretSize

func configMaps() *api.Resource {
	return &api.Resource{
		Version: "v1", Kind: "ConfigMap", Plural: "configmaps", ShortNames: []string{"cm"},
		Namespaced: true, StoragePath: "configmaps",
		New:     func() api.Object { return &v1.ConfigMap{} },
		NewList: func() runtime.Object { return &v1.ConfigMapList{} },
		Default: api.Defaults(func(c *v1.ConfigMap) {
			if c.Data == nil {
				c.Data = map[string]string{}
			}
		}),
		Strategy: api.Strategy{
			Validate:       api.Check(validateConfigMap),
			ValidateUpdate: api.CheckUpdate(validateConfigMapUpdate),
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Data", "string", v1.ConfigMap{}.SwaggerDoc()["data"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(c *v1.ConfigMap, now time.Time) []any {
			return []any{c.Name, int64(len(c.Data) + len(c.BinaryData)), api.Age(c.CreationTimestamp, now)}
		}),
	}
}

func validateConfigMap(c *v1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	size := 0
	data, binary := field.NewPath("data"), field.NewPath("binaryData")
	for _, key := range sortedKeys(c.Data) {
		errs = append(errs, invalid(data.Key(key), key, validation.IsConfigMapKey(key))...)
		if _, twice := c.BinaryData[key]; twice {
			errs = append(errs, field.Invalid(data.Key(key), key, "duplicate of key present in binaryData"))
		}
		size += len(c.Data[key])
	}
	for _, key := range sortedKeys(c.BinaryData) {
		errs = append(errs, invalid(binary.Key(key), key, validation.IsConfigMapKey(key))...)
		size += len(c.BinaryData[key])
	}
	if size > maxDataSize {
		errs = append(errs, field.TooLong(field.NewPath(""), "", maxDataSize))
	}
	return errs
}

func validateConfigMapUpdate(c, old *v1.ConfigMap) field.ErrorList {
	errs := frozen(c.Immutable, old.Immutable, map[string]bool{
		"data":       !equality.Semantic.DeepEqual(c.Data, old.Data),
		"binaryData": !equality.Semantic.DeepEqual(c.BinaryData, old.BinaryData),
	})
	return append(errs, validateConfigMap(c)...)
}

// frozen refuses changes of an object that was declared immutable, the
// declaration included. changed tells which of its fields differ.
func frozen(now, before *bool, changed map[string]bool) field.ErrorList {
	if before == nil || !*before {
		return nil
	}
	const why = "field is immutable when `immutable` is set"
	var errs field.ErrorList
	if now == nil || !*now {
		errs = append(errs, field.Forbidden(field.NewPath("immutable"), why))
	}
	for _, name := range sortedKeys(changed) {
		if changed[name] {
			errs = append(errs, field.Forbidden(field.NewPath(name), why))
		}
	}
	return errs
}
