package core

import (
	"net"
	"path"
	"regexp"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateDisk(name string, partition int32, nameField string, p *field.Path) field.ErrorList {
	errs := required(name, p.Child(nameField))
	if partition < 0 || partition > 255 {
		errs = append(errs, field.Invalid(p.Child("partition"), partition, validation.InclusiveRangeError(1, 255)))
	}
	return errs
}

func validateNFS(s *v1.NFSVolumeSource, p *field.Path) field.ErrorList {
	errs := required(s.Server, p.Child("server"))
	errs = append(errs, required(s.Path, p.Child("path"))...)
	if !path.IsAbs(s.Path) {
		errs = append(errs, field.Invalid(p.Child("path"), s.Path, "must be an absolute path"))
	}
	return errs
}

const iscsiTooLong = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified."

func validateISCSI(portal, iqn string, lun int32, chap, secret bool, initiator *string, unknown string, p *field.Path) field.ErrorList {
	errs := required(portal, p.Child("targetPortal"))
	if iqn == "" {
		errs = append(errs, field.Required(p.Child("iqn"), ""))
	} else {
		errs = append(errs, iscsiName(iqn, unknown, p.Child("iqn"))...)
	}
	errs = append(errs, lunNumber(lun, p)...)
	if chap && !secret {
		errs = append(errs, field.Required(p.Child("secretRef"), ""))
	}
	if initiator != nil {
		errs = append(errs, iscsiName(*initiator, unknown, p.Child("initiatorname"))...)
	}
	return errs
}

var iscsiNames = sync.OnceValue(func() map[string]*regexp.Regexp {
	return map[string]*regexp.Regexp{
		"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`),
		"eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`),
		"naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`),
	}
})

// iscsiName accepts the three forms of names; unknown is the message for others.
func iscsiName(name, unknown string, p *field.Path) field.ErrorList {
	form := iscsiNames()[name[:min(3, len(name))]]
	if form == nil {
		return field.ErrorList{field.Invalid(p, name, unknown)}
	}
	if !form.MatchString(name) {
		return field.ErrorList{field.Invalid(p, name, "must be valid format")}
	}
	return nil
}

func lunNumber(lun int32, p *field.Path) field.ErrorList {
	if lun < 0 || lun > 255 {
		return field.ErrorList{field.Invalid(p.Child("lun"), lun, validation.InclusiveRangeError(0, 255))}
	}
	return nil
}

func validateFlocker(s *v1.FlockerVolumeSource, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.DatasetName == "" && s.DatasetUUID == "" {
		errs = append(errs, field.Required(p, "one of datasetName and datasetUUID is required"))
	}
	if s.DatasetName != "" && s.DatasetUUID != "" {
		errs = append(errs, field.Invalid(p, "resource", "datasetName and datasetUUID can not be specified simultaneously"))
	}
	if strings.Contains(s.DatasetName, "/") {
		errs = append(errs, field.Invalid(p.Child("datasetName"), s.DatasetName, "must not contain '/'"))
	}
	return errs
}

func validateMonitors(monitors []string, p *field.Path) field.ErrorList {
	if len(monitors) == 0 {
		return field.ErrorList{field.Required(p.Child("monitors"), "")}
	}
	return nil
}

func validateRBD(monitors []string, image string, p *field.Path) field.ErrorList {
	return append(validateMonitors(monitors, p), required(image, p.Child("image"))...)
}

func validateQuobyte(s *v1.QuobyteVolumeSource, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	const hostPort = "must be a host:port pair or multiple pairs separated by commas"
	switch {
	case s.Registry == "":
		errs = append(errs, field.Required(p.Child("registry"), hostPort))
	case len(s.Tenant) > 64:
		errs = append(errs, field.Required(p.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters"))
	default:
		for _, pair := range strings.Split(s.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				errs = append(errs, field.Invalid(p.Child("registry"), s.Registry, hostPort))
			}
		}
	}
	return append(errs, required(s.Volume, p.Child("volume"))...)
}

func validateFC(s *v1.FCVolumeSource, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	targets := p.Child("targetWWNs")
	if len(s.TargetWWNs) == 0 && len(s.WWIDs) == 0 {
		errs = append(errs, field.Required(targets, "must specify either targetWWNs or wwids, but not both"))
	}
	if len(s.TargetWWNs) > 0 && len(s.WWIDs) > 0 {
		errs = append(errs, field.Invalid(targets, s.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously"))
	}
	if len(s.TargetWWNs) > 0 {
		if s.Lun == nil {
			errs = append(errs, field.Required(p.Child("lun"), "lun is required if targetWWNs is specified"))
		} else {
			errs = append(errs, lunNumber(*s.Lun, p)...)
		}
	}
	return errs
}

func validateFlex(driver string, options map[string]string, p *field.Path) field.ErrorList {
	errs := required(driver, p.Child("driver"))
	for _, key := range sortedKeys(options) {
		domain, _, _ := strings.Cut(key, "/")
		domain = "." + strings.ToLower(domain)
		if strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			errs = append(errs, field.Invalid(p.Child("options").Key(key), key, "kubernetes.io and k8s.io namespaces are reserved"))
		}
	}
	return errs
}

func validateAzureDisk(s *v1.AzureDiskVolumeSource, p *field.Path) field.ErrorList {
	errs := required(s.DiskName, p.Child("diskName"))
	errs = append(errs, required(s.DataDiskURI, p.Child("diskURI"))...)
	if s.CachingMode != nil {
		errs = append(errs, supported(*s.CachingMode, p.Child("cachingMode"),
			v1.AzureDataDiskCachingNone, v1.AzureDataDiskCachingReadOnly, v1.AzureDataDiskCachingReadWrite)...)
	}
	if s.Kind == nil {
		return errs
	}
	errs = append(errs, supported(*s.Kind, p.Child("kind"), v1.AzureSharedBlobDisk, v1.AzureDedicatedBlobDisk, v1.AzureManagedDisk)...)
	switch managed := *s.Kind == v1.AzureManagedDisk; {
	case managed && !strings.HasPrefix(s.DataDiskURI, "/subscriptions/"):
		errs = append(errs, field.NotSupported(p.Child("diskURI"), s.DataDiskURI,
			[]string{"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"}))
	case !managed && !strings.HasPrefix(s.DataDiskURI, "https://"):
		errs = append(errs, field.NotSupported(p.Child("diskURI"), s.DataDiskURI,
			[]string{"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"}))
	}
	return errs
}

func validateStorageOS(name, namespace string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if name == "" {
		errs = append(errs, field.Required(p.Child("volumeName"), ""))
	} else {
		errs = append(errs, dnsLabel(name, p.Child("volumeName"))...)
	}
	if namespace != "" {
		errs = append(errs, dnsLabel(namespace, p.Child("volumeNamespace"))...)
	}
	return errs
}

func validateScaleIO(gateway, system, volume string, p *field.Path) field.ErrorList {
	errs := required(gateway, p.Child("gateway"))
	errs = append(errs, required(system, p.Child("system"))...)
	return append(errs, required(volume, p.Child("volumeName"))...)
}

func csiDriverName(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	var errs field.ErrorList
	if len(name) > 63 {
		errs = append(errs, field.TooLong(p, "", 63))
	}
	return append(errs, invalid(p, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))...)
}

func namespaceName(name string, p *field.Path) field.ErrorList {
	return invalid(p, name, apivalidation.ValidateNamespaceName(name, false))
}
