package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/skiff-k8s/skiff/scheduler/framework"
)

// PluginSet chooses plugins by name: of one extension point beside those that take part in
// all, or (as a Profile's) of all points. Disabled "*" is all of the default ones.
type PluginSet struct{ Enabled, Disabled []string }

func (s PluginSet) disables(name string) bool {
	return slices.Contains(s.Disabled, name) || slices.Contains(s.Disabled, "*")
}

// fixed plugins are part of the loop itself: there is nothing to take their place.
var fixed = map[string]string{"PrioritySort": "queueSort", "DefaultBinder": "bind"}

// absent plugins are upstream's defaults that have nothing to do here: they may be left out.
var absent = []string{"NodeVolumeLimits", "VolumeZone", "DynamicResources", "NodeDeclaredFeatures", "GangScheduling"}

// point is an extension point, by upstream's name, and whether a plugin is of it.
type point struct {
	name    string
	extends func(framework.Plugin) bool
}

func is[T any](pl framework.Plugin) bool { _, ok := pl.(T); return ok }

var points = []point{
	{"preEnqueue", is[framework.PreEnqueue]}, {"queueSort", nil}, {"preFilter", is[framework.PreFilter]}, {"filter", is[framework.Filter]},
	{"postFilter", is[framework.PostFilter]}, {"preScore", is[framework.PreScore]}, {"score", is[framework.Score]}, {"reserve", is[framework.Reserve]},
	{"permit", is[framework.Permit]}, {"preBind", is[framework.PreBind]}, {"bind", is[framework.Bind]}, {"postBind", nil},
}

// chosen is which plugins take part at each point, in the order in which they are asked.
type chosen map[string][]framework.Plugin

// choose follows upstream: first plugins of all points that a point names itself, then the
// others of all points, then those that take part there alone.
func choose(p Profile, all []framework.Plugin) (chosen, error) {
	byName := map[string]framework.Plugin{}
	var everywhere []string
	for _, pl := range all {
		byName[pl.Name()] = pl
		if !p.Plugins.disables(pl.Name()) {
			everywhere = append(everywhere, pl.Name())
		}
	}
	known := func(where string, names []string) error {
		for _, n := range names {
			if byName[n] == nil && fixed[n] == "" && !slices.Contains(absent, n) && n != "*" {
				return fmt.Errorf("plugins.%s: there is no plugin %q; there are %s", where, n, strings.Join(slices.Sorted(maps.Keys(byName)), ", "))
			}
		}
		return nil
	}
	if err := known("multiPoint", slices.Concat(p.Plugins.Enabled, p.Plugins.Disabled)); err != nil {
		return nil, err
	}
	for _, n := range p.Plugins.Enabled {
		if slices.Contains(absent, n) {
			return nil, fmt.Errorf("plugins.multiPoint.enabled: %s is not available", n)
		}
		if byName[n] != nil && !slices.Contains(everywhere, n) {
			everywhere = append(everywhere, n)
		}
	}
	if err := keepsFixed("multiPoint", p.Plugins, p.Points); err != nil {
		return nil, err
	}
	out := chosen{}
	for name := range p.Points {
		if !slices.ContainsFunc(points, func(pt point) bool { return pt.name == name }) {
			return nil, fmt.Errorf("plugins.%s: there is no such extension point", name)
		}
	}
	for _, pt := range points {
		set := p.Points[pt.name]
		if err := known(pt.name, slices.Concat(set.Enabled, set.Disabled)); err != nil {
			return nil, err
		}
		if err := keepsFixed(pt.name, set, nil); err != nil {
			return nil, err
		}
		var first, alone []string
		for _, n := range set.Enabled {
			switch {
			case fixed[n] == pt.name:
				continue
			case pt.extends == nil || byName[n] == nil || !pt.extends(byName[n]):
				return nil, fmt.Errorf("plugins.%s.enabled: %s does nothing there", pt.name, n)
			case slices.Contains(first, n) || slices.Contains(alone, n):
				return nil, fmt.Errorf("plugins.%s.enabled: %s is named twice", pt.name, n)
			case slices.Contains(everywhere, n):
				first = append(first, n)
			default:
				alone = append(alone, n)
			}
		}
		if pt.extends == nil {
			continue
		}
		names := first
		for _, n := range everywhere {
			if pt.extends(byName[n]) && !set.disables(n) && !slices.Contains(first, n) {
				names = append(names, n)
			}
		}
		for _, n := range append(names, alone...) {
			out[pt.name] = append(out[pt.name], byName[n])
		}
	}
	return out, nil
}

// keepsFixed refuses to do without what the loop itself does.
func keepsFixed(where string, set PluginSet, perPoint map[string]PluginSet) error {
	for _, n := range slices.Sorted(maps.Keys(fixed)) {
		at := fixed[n]
		if where != "multiPoint" && where != at || !set.disables(n) || slices.Contains(set.Enabled, n) || slices.Contains(perPoint[at].Enabled, n) {
			continue
		}
		return fmt.Errorf("plugins.%s.disabled: %s cannot be disabled: there is no other; enable it again there", where, n)
	}
	return nil
}
