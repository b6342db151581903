package core

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateEnv(vars []v1.EnvVar, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range vars {
		v, p := &vars[i], p.Index(i)
		if v.Name == "" {
			errs = append(errs, field.Required(p.Child("name"), ""))
		} else {
			errs = append(errs, invalid(p.Child("name"), v.Name, validation.IsRelaxedEnvVarName(v.Name))...)
		}
		if v.ValueFrom != nil {
			errs = append(errs, validateValueFrom(v, p.Child("valueFrom"))...)
		}
	}
	return errs
}

func validateValueFrom(v *v1.EnvVar, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	from, sources := v.ValueFrom, 0
	if from.FieldRef != nil {
		sources++
		errs = append(errs, validateFieldRef(from.FieldRef, envFields(), p.Child("fieldRef"))...)
	}
	if from.ResourceFieldRef != nil {
		sources++
		errs = append(errs, validateResourceFieldRef(from.ResourceFieldRef, false, p.Child("resourceFieldRef"))...)
	}
	if r := from.ConfigMapKeyRef; r != nil {
		sources++
		errs = append(errs, validateKeyRef(r.Name, r.Key, p.Child("configMapKeyRef"))...)
	}
	if r := from.SecretKeyRef; r != nil {
		sources++
		errs = append(errs, validateKeyRef(r.Name, r.Key, p.Child("secretKeyRef"))...)
	}
	if r := from.FileKeyRef; r != nil {
		sources++
		errs = append(errs, validateFileKeyRef(r, p.Child("fileKeyRef"))...)
	}
	switch {
	case sources == 0:
		errs = append(errs, field.Invalid(p, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case v.Value != "":
		errs = append(errs, field.Invalid(p, "", "may not be specified when `value` is not empty"))
	case sources > 1:
		errs = append(errs, field.Invalid(p, "", "may not have more than one field specified at a time"))
	}
	return errs
}

func validateKeyRef(name, key string, p *field.Path) field.ErrorList {
	errs := dnsSubdomain(name, p.Child("name"))
	if key == "" {
		return append(errs, field.Required(p.Child("key"), ""))
	}
	return append(errs, invalid(p.Child("key"), key, validation.IsConfigMapKey(key))...)
}

func validateFileKeyRef(r *v1.FileKeySelector, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.Key == "" {
		errs = append(errs, field.Required(p.Child("key"), ""))
	} else {
		errs = append(errs, invalid(p.Child("key"), r.Key, validation.IsRelaxedEnvVarName(r.Key))...)
	}
	if r.VolumeName == "" {
		errs = append(errs, field.Required(p.Child("volumeName"), ""))
	} else {
		errs = append(errs, dnsLabel(r.VolumeName, p.Child("volumeName"))...)
	}
	if r.Path == "" {
		return append(errs, field.Required(p.Child("path"), ""))
	}
	return append(errs, noBacksteps(r.Path, p.Child("path"))...)
}

// checkFileKeyVolumes: files with variables must lie where containers of this
// pod wrote them.
func (c *podChecker) checkFileKeyVolumes(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	eachContainerPath(c.spec, p, func(ctr *v1.Container, p *field.Path) {
		for i := range ctr.Env {
			if ctr.Env[i].ValueFrom == nil || ctr.Env[i].ValueFrom.FileKeyRef == nil {
				continue
			}
			name := ctr.Env[i].ValueFrom.FileKeyRef.VolumeName
			p := p.Child("env").Index(i).Child("valueFrom", "fileKeyRef", "volumeName")
			at := slices.IndexFunc(c.spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
			if at < 0 {
				errs = append(errs, field.NotFound(p, name))
			} else if c.spec.Volumes[at].EmptyDir == nil {
				errs = append(errs, field.Invalid(p, name, "referenced volume must be of type emptyDir"))
			}
		}
	})
	return errs
}

func validateEnvFrom(sources []v1.EnvFromSource, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range sources {
		s, at := &sources[i], p.Index(i)
		if s.Prefix != "" {
			errs = append(errs, invalid(at.Child("prefix"), s.Prefix, validation.IsRelaxedEnvVarName(s.Prefix))...)
		}
		named := func(name string, p *field.Path) {
			if name == "" {
				errs = append(errs, field.Required(p.Child("name"), ""))
				return
			}
			errs = append(errs, dnsSubdomain(name, p.Child("name"))...)
		}
		count := 0
		if s.ConfigMapRef != nil {
			count++
			named(s.ConfigMapRef.Name, at.Child("configMapRef"))
		}
		if s.SecretRef != nil {
			count++
			named(s.SecretRef.Name, at.Child("secretRef"))
		}
		switch count {
		case 0:
			errs = append(errs, field.Invalid(p, "", "must specify one of: `configMapRef` or `secretRef`"))
		case 2:
			errs = append(errs, field.Invalid(p, "", "may not have more than one field specified at a time"))
		}
	}
	return errs
}

// envFields are the pod's fields that a variable can show.
func envFields() []string {
	return []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}
}

// volumeFields are the pod's fields that a downward API volume can show.
func volumeFields() []string {
	return []string{"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"}
}

// knownFields are what field references can name at all.
func knownFields() []string {
	return append(envFields(), "metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName", "status.phase")
}

func validateFieldRef(r *v1.ObjectFieldSelector, allowed []string, p *field.Path) field.ErrorList {
	if r.APIVersion == "" {
		return field.ErrorList{field.Required(p.Child("apiVersion"), "")}
	}
	if r.FieldPath == "" {
		return field.ErrorList{field.Required(p.Child("fieldPath"), "")}
	}
	refuse := func(format string, args ...any) field.ErrorList {
		return field.ErrorList{field.Invalid(p.Child("fieldPath"), r.FieldPath, "error converting fieldPath: "+fmt.Sprintf(format, args...))}
	}
	if r.APIVersion != "v1" {
		return refuse("unsupported pod version: %s", r.APIVersion)
	}
	path, key, subscripted := splitSubscript(r.FieldPath)
	if subscripted {
		switch path {
		case "metadata.annotations":
			return qualifiedName(strings.ToLower(key), p)
		case "metadata.labels":
			return qualifiedName(key, p)
		}
		return refuse("field label does not support subscript: %s", r.FieldPath)
	}
	if path == "spec.host" {
		path = "spec.nodeName" // the name before v1
	} else if !slices.Contains(knownFields(), path) {
		return refuse("field label not supported: %s", path)
	}
	if !slices.Contains(allowed, path) {
		return field.ErrorList{field.NotSupported(p.Child("fieldPath"), path, slices.Sorted(slices.Values(allowed)))}
	}
	return nil
}

// splitSubscript parses metadata.labels['key'].
func splitSubscript(path string) (field, key string, ok bool) {
	inner, closed := strings.CutSuffix(path, "']")
	if !closed {
		return path, "", false
	}
	field, key, ok = strings.Cut(inner, "['")
	if !ok || field == "" {
		return path, "", false
	}
	return field, key, true
}

func validateResourceFieldRef(r *v1.ResourceFieldSelector, volume bool, p *field.Path) field.ErrorList {
	allowed := []string{
		"limits.cpu", "limits.ephemeral-storage", "limits.memory",
		"requests.cpu", "requests.ephemeral-storage", "requests.memory",
	}
	hugePages := strings.HasPrefix(r.Resource, "limits.hugepages-") || strings.HasPrefix(r.Resource, "requests.hugepages-")
	var errs field.ErrorList
	switch {
	case volume && r.ContainerName == "":
		errs = append(errs, field.Required(p.Child("containerName"), ""))
	case r.Resource == "":
		errs = append(errs, field.Required(p.Child("resource"), ""))
	case !hugePages && !slices.Contains(allowed, r.Resource):
		errs = append(errs, field.NotSupported(p.Child("resource"), r.Resource, allowed))
	}
	if r.Divisor.IsZero() {
		return errs
	}
	bytes := []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
	divisor := func(what string, values []string) {
		if !slices.Contains(values, r.Divisor.String()) {
			errs = append(errs, field.Invalid(p.Child("divisor"), r.Resource, fmt.Sprintf("only divisor's values %s are supported with the %s resource", strings.Join(values, ", "), what)))
		}
	}
	switch _, name, _ := strings.Cut(r.Resource, "."); {
	case name == "cpu":
		if d := r.Divisor.String(); d != "1m" && d != "1" {
			errs = append(errs, field.Invalid(p.Child("divisor"), r.Resource, "only divisor's values 1m and 1 are supported with the cpu resource"))
		}
	case name == "memory":
		divisor("memory", bytes)
	case name == "ephemeral-storage":
		divisor("local ephemeral storage", bytes)
	case hugePages:
		divisor("hugepages", bytes)
	}
	return errs
}
