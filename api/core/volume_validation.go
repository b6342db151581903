package core

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checkVolumes fills c.volumes with what containers can mount.
func (c *podChecker) checkVolumes(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	c.volumes = make(map[string]*v1.VolumeSource, len(c.spec.Volumes))
	created := sets.New[string]() // claims made for ephemeral volumes
	if c.pod != nil && c.pod.Name != "" {
		for i := range c.spec.Volumes {
			if c.spec.Volumes[i].Ephemeral != nil {
				created.Insert(c.pod.Name + "-" + c.spec.Volumes[i].Name)
			}
		}
	}
	for i := range c.spec.Volumes {
		v, p := &c.spec.Volumes[i], p.Index(i)
		bad := exactlyOneVolume(p, c.volumeKinds(v, p))
		if i := v.ISCSI; i != nil && i.InitiatorName != nil && len(v.Name+":"+i.TargetPortal) > 64 {
			bad = append(bad, field.Invalid(p.Child("name"), v.Name, iscsiTooLong))
		}
		if v.Name == "" {
			bad = append(bad, field.Required(p.Child("name"), ""))
		} else {
			bad = append(bad, dnsLabel(v.Name, p.Child("name"))...)
		}
		if c.volumes[v.Name] != nil {
			bad = append(bad, field.Duplicate(p.Child("name"), v.Name))
		}
		if len(bad) == 0 {
			c.volumes[v.Name] = &v.VolumeSource
		}
		errs = append(errs, bad...)
		if claim := v.PersistentVolumeClaim; claim != nil && created.Has(claim.ClaimName) {
			errs = append(errs, field.Invalid(p.Child("persistentVolumeClaim", "claimName"), claim.ClaimName,
				"must not reference a PVC that gets created for an ephemeral volume"))
		}
	}
	return errs
}

// volumeKind is one member of the union that a volume is.
type volumeKind struct {
	name  string
	set   bool
	check func(*field.Path) field.ErrorList
	// beside: it may stand beside another kind.
	beside bool
}

// conflictName is what errors about more than one kind call a kind: clients
// may match upstream's spellings.
func (k volumeKind) conflictName() string {
	switch k.name {
	case "persistentDisk":
		return "gcePersistentDisk"
	case "cephfs":
		return "cephFS"
	case "downwardAPI":
		return "downwarAPI"
	}
	return k.name
}

func exactlyOneVolume(p *field.Path, kinds []volumeKind) field.ErrorList {
	var errs field.ErrorList
	found := false
	for _, k := range kinds {
		switch {
		case !k.set:
		case found && !k.beside:
			errs = append(errs, field.Forbidden(p.Child(k.conflictName()), "may not specify more than 1 volume type"))
		default:
			found = true
			errs = append(errs, k.check(p.Child(k.name))...)
		}
	}
	if !found {
		errs = append(errs, field.Required(p, "must specify a volume type"))
	}
	return errs
}

func validateEmptyDir(e *v1.EmptyDirVolumeSource, p *field.Path) field.ErrorList {
	if e.SizeLimit != nil && e.SizeLimit.Sign() < 0 {
		return field.ErrorList{field.Forbidden(p.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity")}
	}
	return nil
}

func validateHostPath(h *v1.HostPathVolumeSource, p *field.Path) field.ErrorList {
	if h.Path == "" {
		return field.ErrorList{field.Required(p.Child("path"), "")}
	}
	errs := noBacksteps(h.Path, p.Child("path"))
	if h.Type != nil {
		errs = append(errs, supported(*h.Type, p.Child("type"), v1.HostPathUnset, v1.HostPathDirectoryOrCreate, v1.HostPathDirectory,
			v1.HostPathFileOrCreate, v1.HostPathFile, v1.HostPathSocket, v1.HostPathCharDev, v1.HostPathBlockDev)...)
	}
	return errs
}

func required(value string, p *field.Path) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	return nil
}

func fileMode(mode *int32, p *field.Path) field.ErrorList {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		return field.ErrorList{field.Invalid(p, *mode, "must be a number between 0 and 0777 (octal), both inclusive")}
	}
	return nil
}

func validateSecretVolume(s *v1.SecretVolumeSource, p *field.Path) field.ErrorList {
	errs := required(s.SecretName, p.Child("secretName"))
	errs = append(errs, fileMode(s.DefaultMode, p.Child("defaultMode"))...)
	errs = append(errs, userID(s.DefaultUser, p.Child("defaultUser"))...)
	return append(errs, validateKeyPaths(s.Items, p.Child("items"))...)
}

func validateConfigMapVolume(s *v1.ConfigMapVolumeSource, p *field.Path) field.ErrorList {
	errs := required(s.Name, p.Child("name"))
	errs = append(errs, fileMode(s.DefaultMode, p.Child("defaultMode"))...)
	errs = append(errs, userID(s.DefaultUser, p.Child("defaultUser"))...)
	return append(errs, validateKeyPaths(s.Items, p.Child("items"))...)
}

func validateKeyPaths(items []v1.KeyToPath, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range items {
		k, p := &items[i], p.Index(i)
		errs = append(errs, required(k.Key, p.Child("key"))...)
		errs = append(errs, required(k.Path, p.Child("path"))...)
		errs = append(errs, localPath(k.Path, p.Child("path"))...)
		errs = append(errs, fileMode(k.Mode, p.Child("mode"))...)
		errs = append(errs, userID(k.User, p.Child("user"))...)
	}
	return errs
}

func validateDownwardAPIVolume(d *v1.DownwardAPIVolumeSource, p *field.Path) field.ErrorList {
	errs := fileMode(d.DefaultMode, p.Child("defaultMode"))
	errs = append(errs, userID(d.DefaultUser, p.Child("defaultUser"))...)
	for i := range d.Items {
		// Upstream's paths leave out the item.
		errs = append(errs, validateDownwardAPIFile(&d.Items[i], p)...)
	}
	return errs
}

func validateDownwardAPIFile(f *v1.DownwardAPIVolumeFile, p *field.Path) field.ErrorList {
	errs := required(f.Path, p.Child("path"))
	errs = append(errs, localPath(f.Path, p.Child("path"))...)
	switch {
	case f.FieldRef != nil:
		errs = append(errs, validateFieldRef(f.FieldRef, volumeFields(), p.Child("fieldRef"))...)
		if f.ResourceFieldRef != nil {
			errs = append(errs, field.Invalid(p, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"))
		}
	case f.ResourceFieldRef != nil:
		errs = append(errs, validateResourceFieldRef(f.ResourceFieldRef, true, p.Child("resourceFieldRef"))...)
	default:
		errs = append(errs, field.Required(p, "one of fieldRef and resourceFieldRef is required"))
	}
	errs = append(errs, fileMode(f.Mode, p.Child("mode"))...)
	return append(errs, userID(f.User, p.Child("user"))...)
}

func validateCSIVolume(s *v1.CSIVolumeSource, p *field.Path) field.ErrorList {
	errs := csiDriverName(s.Driver, p.Child("driver"))
	if ref := s.NodePublishSecretRef; ref != nil {
		if ref.Name == "" {
			errs = append(errs, field.Required(p.Child("nodePublishSecretRef", "name"), ""))
		} else {
			errs = append(errs, dnsSubdomain(ref.Name, p.Child("name"))...)
		}
	}
	return errs
}

func (c *podChecker) checkEphemeral(v *v1.Volume, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := p.Child("ephemeral", "volumeClaimTemplate")
	if t := v.Ephemeral.VolumeClaimTemplate; t == nil {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, validateTemplateMeta(&t.ObjectMeta, at.Child("metadata"))...)
		errs = append(errs, ValidateClaimSpec(&t.Spec, nil, at.Child("spec"))...)
	}
	if c.pod != nil && c.pod.Name != "" && v.Name != "" {
		claim := c.pod.Name + "-" + v.Name
		for _, msg := range apivalidation.NameIsDNSSubdomain(claim, false) {
			errs = append(errs, field.Invalid(p.Child("name"), v.Name, fmt.Sprintf("PVC name %q: %v", claim, msg)))
		}
	}
	return errs
}

// validateTemplateMeta allows labels and annotations, which are all that is
// copied from a template.
func validateTemplateMeta(m *metav1.ObjectMeta, p *field.Path) field.ErrorList {
	errs := apivalidation.ValidateAnnotations(m.Annotations, p.Child("annotations"))
	errs = append(errs, metav1validation.ValidateLabels(m.Labels, p.Child("labels"))...)
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"name", m.Name != ""}, {"generateName", m.GenerateName != ""}, {"namespace", m.Namespace != ""},
		{"selfLink", m.SelfLink != ""}, {"uID", m.UID != ""}, {"resourceVersion", m.ResourceVersion != ""},
		{"generation", m.Generation != 0}, {"creationTimestamp", !m.CreationTimestamp.IsZero()},
		{"deletionTimestamp", m.DeletionTimestamp != nil}, {"deletionGracePeriodSeconds", m.DeletionGracePeriodSeconds != nil},
		{"ownerReferences", m.OwnerReferences != nil}, {"finalizers", m.Finalizers != nil}, {"managedFields", m.ManagedFields != nil},
	} {
		if f.set {
			errs = append(errs, field.Forbidden(p.Child(f.name), "cannot be set"))
		}
	}
	return errs
}

func (c *podChecker) checkImageVolume(s *v1.ImageVolumeSource, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !c.lax.emptyImageVolumes {
		errs = required(s.Reference, p.Child("reference"))
	}
	return append(errs, oneOf(s.PullPolicy, p.Child("pullPolicy"), v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)...)
}
