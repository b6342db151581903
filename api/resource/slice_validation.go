package resource

import (
	"fmt"
	"regexp"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/core"
)

func validateSlice(s, old *resourcev1.ResourceSliceSpec) field.ErrorList {
	p := field.NewPath("spec")
	pool := p.Child("pool")
	errs := validateDriverName(s.Driver, p.Child("driver"))
	errs = append(errs, validatePoolName(s.Pool.Name, pool.Child("name"))...)
	if s.Pool.ResourceSliceCount <= 0 {
		errs = append(errs, field.Invalid(pool.Child("resourceSliceCount"), s.Pool.ResourceSliceCount, "must be greater than zero"))
	}
	if s.Pool.Generation < 0 {
		errs = append(errs, field.Invalid(pool.Child("generation"), s.Pool.Generation, "must be greater than or equal to zero"))
	}
	if old != nil {
		errs = append(errs, apivalidation.ValidateImmutableField(s.Pool.Name, old.Pool.Name, pool.Child("name"))...)
		errs = append(errs, apivalidation.ValidateImmutableField(s.Driver, old.Driver, p.Child("driver"))...)
		errs = append(errs, apivalidation.ValidateImmutableField(s.NodeName, old.NodeName, p.Child("nodeName"))...)
	}
	errs = append(errs, validateSliceNodes(s, p)...)
	if s.SharedCounters != nil && s.Devices != nil {
		errs = append(errs, field.Invalid(p, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	errs = append(errs, uniqueKeys(s.Devices, maxDevices(s), p.Child("devices"),
		func(d *resourcev1.Device) string { return d.Name },
		func(d *resourcev1.Device, p *field.Path) field.ErrorList {
			return validateDevice(d, findDevice(old, d.Name), ptr.Deref(s.PerDeviceNodeSelection, false), p)
		})...)
	return append(errs, unique(s.SharedCounters, resourcev1.ResourceSliceMaxCounterSets, p.Child("sharedCounters"),
		func(c *resourcev1.CounterSet) string { return c.Name },
		func(c *resourcev1.CounterSet, p *field.Path) field.ErrorList {
			return validateCounters(c.Name, p.Child("name"), c.Counters, resourcev1.ResourceSliceMaxCountersPerCounterSet, p)
		})...)
}

// maxDevices is lower for devices that say more about themselves.
func maxDevices(s *resourcev1.ResourceSliceSpec) int {
	for i := range s.Devices {
		d := &s.Devices[i]
		if len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 {
			return resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
		for _, a := range d.Attributes {
			if isList(&a) {
				return resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
			}
		}
	}
	return resourcev1.ResourceSliceMaxDevices
}

func findDevice(s *resourcev1.ResourceSliceSpec, name string) *resourcev1.Device {
	if s != nil {
		for i := range s.Devices {
			if s.Devices[i].Name == name {
				return &s.Devices[i]
			}
		}
	}
	return nil
}

// validateSliceNodes wants the nodes of the devices said in exactly one of four ways.
func validateSliceNodes(s *resourcev1.ResourceSliceSpec, p *field.Path) field.ErrorList {
	const one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	var errs field.ErrorList
	var set []string
	if n := s.NodeName; n != nil && *n == "" {
		errs = append(errs, field.Invalid(p.Child("nodeName"), *n, "must be either unset or set to a non-empty string"))
	} else if n != nil {
		set = append(set, "`nodeName`")
		errs = append(errs, validateSubdomain(*n, p.Child("nodeName"))...)
	}
	if sel := s.NodeSelector; sel != nil {
		set = append(set, "`nodeSelector`")
		errs = append(errs, core.ValidateNodeSelector(sel, p.Child("nodeSelector"))...)
		if len(sel.NodeSelectorTerms) != 1 {
			errs = append(errs, field.Invalid(p.Child("nodeSelector", "nodeSelectorTerms"), sel.NodeSelectorTerms, "must have exactly one node selector term"))
		}
	}
	for _, f := range []struct {
		name  string
		value *bool
	}{{"allNodes", s.AllNodes}, {"perDeviceNodeSelection", s.PerDeviceNodeSelection}} {
		if f.value == nil {
			continue
		}
		if *f.value {
			set = append(set, "`"+f.name+"`")
		} else {
			errs = append(errs, field.Invalid(p.Child(f.name), false, "must be either unset or set to true"))
		}
	}
	if len(set) == 0 {
		errs = append(errs, field.Required(p, one))
	} else if len(set) > 1 {
		errs = append(errs, field.Invalid(p, "{"+strings.Join(set, ", ")+"}", one+", but multiple fields are set"))
	}
	return errs
}

// validateDeviceNodes does the same for one device, where the slice leaves it to devices.
func validateDeviceNodes(d *resourcev1.Device, perDevice bool, p *field.Path) field.ErrorList {
	if !perDevice {
		if d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil {
			return field.ErrorList{field.Invalid(p, nil,
				"`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec")}
		}
		return nil
	}
	const one = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
	var errs field.ErrorList
	var set []string
	if n := d.NodeName; n != nil && *n == "" {
		errs = append(errs, field.Invalid(p.Child("nodeName"), *n, "must not be empty"))
	} else if n != nil {
		set = append(set, "`nodeName`")
		errs = append(errs, validateSubdomain(*n, p.Child("nodeName"))...)
	}
	if d.NodeSelector != nil {
		set = append(set, "`nodeSelector`")
		errs = append(errs, core.ValidateNodeSelector(d.NodeSelector, p.Child("nodeSelector"))...)
	}
	if a := d.AllNodes; a != nil && *a {
		set = append(set, "`allNodes`")
	} else if a != nil {
		errs = append(errs, field.Invalid(p.Child("allNodes"), *a, "must be either unset or set to true"))
	}
	if len(set) == 0 {
		errs = append(errs, field.Required(p, one))
	} else if len(set) > 1 {
		errs = append(errs, field.Invalid(p, "{"+strings.Join(set, ", ")+"}", one))
	}
	return errs
}

func validateDevice(d, old *resourcev1.Device, perDevice bool, p *field.Path) field.ErrorList {
	errs := validateLabel(d.Name, p.Child("name"))
	if n := len(d.Attributes) + len(d.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		errs = append(errs, field.Invalid(p, n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d",
			resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice)))
	}
	values := 0
	for _, a := range d.Attributes {
		values += max(1, len(a.BoolValues)+len(a.IntValues)+len(a.StringValues)+len(a.VersionValues))
	}
	if values > resourcev1.ResourceSliceMaxAttributeValuesPerDevice {
		errs = append(errs, field.Invalid(p, values, fmt.Sprintf("the total number of attribute values must not exceed %d",
			resourcev1.ResourceSliceMaxAttributeValuesPerDevice)))
	}
	for _, name := range sortedKeys(d.Attributes) {
		a := d.Attributes[name]
		errs = append(errs, validateQualifiedName(string(name), p.Child("attributes"))...)
		errs = append(errs, validateAttribute(&a, p.Child("attributes").Key(shorten(string(name))))...)
	}
	if old == nil || !equality.Semantic.DeepEqual(old.Capacity, d.Capacity) {
		for _, name := range sortedKeys(d.Capacity) {
			c, cp := d.Capacity[name], p.Child("capacity")
			errs = append(errs, validateQualifiedName(string(name), cp)...)
			errs = append(errs, validateCapacity(&c, ptr.Deref(d.AllowMultipleAllocations, false), cp.Key(shorten(string(name))))...)
		}
	}
	if old == nil || !equality.Semantic.DeepEqual(old.Taints, d.Taints) {
		errs = append(errs, each(d.Taints, resourcev1.DeviceTaintsMaxLength, p.Child("taints"),
			func(t *resourcev1.DeviceTaint, p *field.Path) field.ErrorList { return validateTaint(t, nil, p) })...)
	}
	errs = append(errs, unique(d.ConsumesCounters, resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice, p.Child("consumesCounters"),
		func(c *resourcev1.DeviceCounterConsumption) string { return c.CounterSet },
		func(c *resourcev1.DeviceCounterConsumption, p *field.Path) field.ErrorList {
			return validateCounters(c.CounterSet, p.Child("counterSet"), c.Counters,
				resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption, p)
		})...)
	errs = append(errs, validateDeviceNodes(d, perDevice, p)...)
	return append(errs, validateBindingConditions(d.BindingConditions, d.BindingFailureConditions, p)...)
}

// validateCounters wants the name of a set of counters and at least one counter.
func validateCounters(name string, np *field.Path, counters map[string]resourcev1.Counter, limit int, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if name == "" {
		errs = append(errs, field.Required(np, ""))
	} else {
		errs = append(errs, validateLabel(name, np)...)
	}
	p = p.Child("counters")
	if len(counters) == 0 {
		return append(errs, field.Required(p, ""))
	}
	if len(counters) > limit {
		return append(errs, field.TooMany(p, len(counters), limit))
	}
	for _, key := range sortedKeys(counters) {
		errs = append(errs, validateLabel(key, p)...)
	}
	return errs
}

// shorten cuts the middle out of names that are too long to be valid.
func shorten(name string) string {
	const limit = resourcev1.DeviceMaxDomainLength + len("/") + resourcev1.DeviceMaxIDLength
	if len(name) <= limit {
		return name
	}
	rest := limit - len("...")
	return name[:(rest+1)/2] + "..." + name[len(name)-rest/2:]
}

// semver is a version of https://semver.org 2.0.0.
var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
	`(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?` +
	`(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)

func validateAttribute(a *resourcev1.DeviceAttribute, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	var set []string
	text := func(value *string, p *field.Path) field.ErrorList {
		if len(*value) > resourcev1.DeviceAttributeMaxValueLength {
			return field.ErrorList{field.TooLong(p, "", resourcev1.DeviceAttributeMaxValueLength)}
		}
		return nil
	}
	version := func(value *string, p *field.Path) field.ErrorList {
		errs := text(value, p)
		if !semver.MatchString(*value) {
			errs = append(errs, field.Invalid(p, *value, "must be a string compatible with semver.org spec 2.0.0"))
		}
		return errs
	}
	is := func(name string, given bool) bool {
		if given {
			set = append(set, name)
		}
		return given
	}
	list := func(name string, given bool, value any, n int) {
		if is(name, given) && n == 0 {
			errs = append(errs, field.Invalid(p.Child(name), value, "must not be empty if specified"))
		}
	}
	is("int", a.IntValue != nil)
	is("bool", a.BoolValue != nil)
	if is("string", a.StringValue != nil) {
		errs = append(errs, text(a.StringValue, p.Child("string"))...)
	}
	if is("version", a.VersionValue != nil) {
		errs = append(errs, version(a.VersionValue, p.Child("version"))...)
	}
	list("ints", a.IntValues != nil, a.IntValues, len(a.IntValues))
	list("bools", a.BoolValues != nil, a.BoolValues, len(a.BoolValues))
	list("strings", a.StringValues != nil, a.StringValues, len(a.StringValues))
	list("versions", a.VersionValues != nil, a.VersionValues, len(a.VersionValues))
	errs = append(errs, each(a.StringValues, anySize, p.Child("strings"), text)...)
	errs = append(errs, each(a.VersionValues, anySize, p.Child("versions"), version)...)
	const names = "`int`, `bool`, `string`, `version`, `ints`, `bools`, `strings`, `versions`"
	if len(set) == 0 {
		errs = append(errs, field.Invalid(p, "", "must specify one of: "+names))
	} else if len(set) > 1 {
		errs = append(errs, field.Invalid(p, "{"+strings.Join(set, ", ")+"}", "must specify exactly one of: "+names))
	}
	return errs
}
