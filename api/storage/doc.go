// Package storage declares the resources of storage.k8s.io.
//
// Owns: names, defaults, validation, strategies and table cells of the group's kinds.
// Must not: provision, attach or mount anything.
package storage

import (
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

var groupVersion = storagev1.SchemeGroupVersion

// Resources lists what the group serves.
func Resources() []*api.Resource {
	return []*api.Resource{
		csiDrivers(),
		csiNodes(),
		csiStorageCapacities(),
		storageClasses(),
		volumeAttachments(),
		volumeAttributesClasses(),
	}
}

func setDefault[T any](at **T, value T) {
	if *at == nil {
		*at = &value
	}
}

// maxDriverName is CSI's limit.
const maxDriverName = 63

func validateDriverName(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	var errs field.ErrorList
	if len(name) > maxDriverName {
		errs = append(errs, field.TooLong(p, "", maxDriverName))
	}
	return append(errs, invalid(name, validation.IsDNS1123Subdomain(strings.ToLower(name)), p)...)
}

func invalid(value string, msgs []string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range msgs {
		errs = append(errs, field.Invalid(p, value, msg))
	}
	return errs
}
