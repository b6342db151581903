package core

import (
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *podChecker) checkMounts(ctr *v1.Container, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	paths := sets.New[string]()
	for i := range ctr.VolumeMounts {
		m, at := &ctr.VolumeMounts[i], p.Index(i)
		if m.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		if c.volumes[m.Name] == nil {
			errs = append(errs, field.NotFound(at.Child("name"), m.Name))
		}
		if m.MountPath == "" {
			errs = append(errs, field.Required(at.Child("mountPath"), ""))
		}
		if paths.Has(m.MountPath) {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		paths.Insert(m.MountPath)
		if slices.ContainsFunc(ctr.VolumeDevices, func(d v1.VolumeDevice) bool { return d.Name == m.Name }) {
			errs = append(errs, field.Invalid(at.Child("name"), m.Name, "must not already exist in volumeDevices"))
		}
		if slices.ContainsFunc(ctr.VolumeDevices, func(d v1.VolumeDevice) bool { return d.DevicePath == m.MountPath }) {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must not already exist as a path in volumeDevices"))
		}
		// Upstream's paths leave out the index from here on.
		if m.SubPath != "" {
			errs = append(errs, descendingPath(m.SubPath, p.Child("subPath"))...)
		}
		if m.SubPathExpr != "" {
			if m.SubPath != "" {
				errs = append(errs, field.Invalid(at.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
			}
			errs = append(errs, descendingPath(m.SubPathExpr, p.Child("subPathExpr"))...)
		}
		errs = append(errs, validateMountPropagation(m, ctr, p.Child("mountPropagation"))...)
		errs = append(errs, validateRecursiveReadOnly(m, p.Child("recursiveReadOnly"))...)
	}
	return errs
}

func validateMountPropagation(m *v1.VolumeMount, ctr *v1.Container, p *field.Path) field.ErrorList {
	if m.MountPropagation == nil {
		return nil
	}
	errs := supported(*m.MountPropagation, p, v1.MountPropagationBidirectional, v1.MountPropagationHostToContainer, v1.MountPropagationNone)
	privileged := ctr.SecurityContext != nil && ctr.SecurityContext.Privileged != nil && *ctr.SecurityContext.Privileged
	if *m.MountPropagation == v1.MountPropagationBidirectional && !privileged {
		errs = append(errs, field.Forbidden(p, "Bidirectional mount propagation is available only to privileged containers"))
	}
	return errs
}

func validateRecursiveReadOnly(m *v1.VolumeMount, p *field.Path) field.ErrorList {
	if m.RecursiveReadOnly == nil {
		return nil
	}
	switch *m.RecursiveReadOnly {
	case v1.RecursiveReadOnlyDisabled:
		return nil
	case v1.RecursiveReadOnlyEnabled, v1.RecursiveReadOnlyIfPossible:
		var errs field.ErrorList
		if !m.ReadOnly {
			errs = append(errs, field.Forbidden(p, "may only be specified when readOnly is true"))
		}
		if m.MountPropagation != nil && *m.MountPropagation != v1.MountPropagationNone {
			errs = append(errs, field.Forbidden(p, "may only be specified when mountPropagation is None or not specified"))
		}
		return errs
	}
	return supported(*m.RecursiveReadOnly, p, v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyEnabled, v1.RecursiveReadOnlyIfPossible)
}

func (c *podChecker) checkDevices(ctr *v1.Container, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	names, paths := sets.New[string](), sets.New[string]()
	for i, d := range ctr.VolumeDevices {
		at := p.Index(i)
		if d.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		if names.Has(d.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "must be unique"))
		}
		if s := c.volumes[d.Name]; s == nil {
			errs = append(errs, field.NotFound(at.Child("name"), d.Name))
		} else if s.PersistentVolumeClaim == nil && s.Ephemeral == nil {
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
		}
		if d.DevicePath == "" {
			errs = append(errs, field.Required(at.Child("devicePath"), ""))
		}
		if paths.Has(d.DevicePath) {
			errs = append(errs, field.Invalid(at.Child("devicePath"), d.DevicePath, "must be unique"))
		}
		if len(noBacksteps(d.DevicePath, p)) > 0 {
			errs = append(errs, field.Invalid(at.Child("devicePath"), d.DevicePath, "can not contain backsteps ('..')"))
		} else {
			paths.Insert(d.DevicePath)
		}
		if slices.ContainsFunc(ctr.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == d.Name }) {
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "must not already exist in volumeMounts"))
		}
		if slices.ContainsFunc(ctr.VolumeMounts, func(m v1.VolumeMount) bool { return m.MountPath == d.DevicePath }) {
			errs = append(errs, field.Invalid(at.Child("devicePath"), d.DevicePath, "must not already exist as a path in volumeMounts"))
		}
		if d.Name != "" {
			names.Insert(d.Name)
		}
	}
	return errs
}

// noBacksteps refuses paths with ".." as an element.
func noBacksteps(target string, p *field.Path) field.ErrorList {
	if slices.Contains(strings.Split(target, "/"), "..") {
		return field.ErrorList{field.Invalid(p, target, "must not contain '..'")}
	}
	return nil
}

// descendingPath accepts relative paths that never climb.
func descendingPath(target string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if path.IsAbs(target) {
		errs = append(errs, field.Invalid(p, target, "must be a relative path"))
	}
	return append(errs, noBacksteps(target, p)...)
}

// localPath accepts what may be written into a volume: names that begin with ".."
// belong to the atomic writer.
func localPath(target string, p *field.Path) field.ErrorList {
	errs := descendingPath(target, p)
	if strings.HasPrefix(target, "..") && !strings.HasPrefix(target, "../") {
		errs = append(errs, field.Invalid(p, target, "must not start with '..'"))
	}
	return errs
}
