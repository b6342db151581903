package scheduler

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"github.com/skiff-k8s/skiff/scheduler/framework"
)

// profileOf makes a profile as a scheduler does.
func profileOf(p Profile) (*profile, error) {
	client := fake.NewClientset()
	s, err := New(Config{Client: client, Informers: informers.NewSharedInformerFactory(client, 0), Events: events.NewFakeRecorder(1),
		Logger: slog.New(slog.DiscardHandler), Seed: 1, Profiles: []Profile{p}})
	if err != nil {
		return nil, err
	}
	return s.profiles[corev1.DefaultSchedulerName], nil
}

func (pr *profile) list() map[string]string {
	names := func(n int, name func(i int) string) string {
		var out []string
		for i := range n {
			if s := name(i); s != "" {
				out = append(out, s)
			}
		}
		return strings.Join(out, " ")
	}
	return map[string]string{
		"preEnqueue": names(len(pr.preEnqueue), func(i int) string { return pr.preEnqueue[i].(framework.Plugin).Name() }),
		"preFilter":  names(len(pr.preFilters), func(i int) string { return pr.preFilters[i].name }),
		"filter":     names(len(pr.filters), func(i int) string { return pr.filters[i].name }),
		"postFilter": names(len(pr.postFilters), func(i int) string { return pr.postFilters[i].(framework.Plugin).Name() }),
		"preScore": names(len(pr.scorers), func(i int) string {
			if pr.scorers[i].pre == nil {
				return ""
			}
			return pr.scorers[i].score.(framework.Plugin).Name()
		}),
		"score": names(len(pr.scorers), func(i int) string {
			return fmt.Sprint(pr.scorers[i].score.(framework.Plugin).Name(), ":", pr.scorers[i].weight)
		}),
		"reserve": names(len(pr.reserves), func(i int) string { return pr.reserves[i].(framework.Plugin).Name() }),
		"preBind": names(len(pr.preBinds), func(i int) string { return pr.preBinds[i].(framework.Plugin).Name() }),
	}
}

func TestExtensionPoints(t *testing.T) {
	usual, err := profileOf(Profile{})
	if err != nil {
		t.Fatal(err)
	}
	before := usual.list()
	const filters = "NodeName NodeUnschedulable TaintToleration NodeAffinity NodePorts NodeResourcesFit"
	if !strings.HasPrefix(before["filter"], filters) || before["preEnqueue"] != "SchedulingGates" || before["postFilter"] != "DefaultPreemption" {
		t.Fatalf("the default profile is %v", before)
	}
	for _, tt := range []struct {
		name    string
		profile Profile
		want    map[string]string // what differs from the default
	}{
		{"nothing said", Profile{Points: map[string]PluginSet{"filter": {}}}, nil},
		{"off everywhere", Profile{Plugins: PluginSet{Disabled: []string{"NodePorts"}}}, map[string]string{
			"preFilter": strings.Replace(before["preFilter"], "NodePorts ", "", 1), "filter": strings.Replace(before["filter"], "NodePorts ", "", 1)}},
		{"off at one point", Profile{Points: map[string]PluginSet{"filter": {Disabled: []string{"NodeName"}}}}, map[string]string{
			"filter": strings.Replace(before["filter"], "NodeName ", "", 1)}},
		{"off everywhere, on at one", Profile{Plugins: PluginSet{Disabled: []string{"DefaultPreemption"}}, Points: map[string]PluginSet{"postFilter": {Enabled: []string{"DefaultPreemption"}}}}, nil},
		{"no preemption", Profile{Points: map[string]PluginSet{"postFilter": {Disabled: []string{"*"}}}}, map[string]string{"postFilter": ""}},
		{"one score alone", Profile{Weights: map[string]int64{"ImageLocality": 7}, Points: map[string]PluginSet{
			"preScore": {Disabled: []string{"*"}, Enabled: []string{"ImageLocality"}}, "score": {Disabled: []string{"*"}, Enabled: []string{"ImageLocality"}}}},
			map[string]string{"preScore": "ImageLocality", "score": "ImageLocality:7"}},
		{"asked first", Profile{Points: map[string]PluginSet{"filter": {Enabled: []string{"NodeResourcesFit", "NodePorts"}}}}, map[string]string{
			"filter": strings.Replace(before["filter"], filters, "NodeResourcesFit NodePorts NodeName NodeUnschedulable TaintToleration NodeAffinity", 1)}},
		{"all off but one", Profile{Plugins: PluginSet{Disabled: []string{"*"}, Enabled: []string{"NodeResourcesFit", "PrioritySort", "DefaultBinder"}}}, map[string]string{
			"preEnqueue": "", "preFilter": "", "filter": "NodeResourcesFit", "postFilter": "", "preScore": "", "score": "NodeResourcesFit:1", "reserve": "", "preBind": ""}},
		{"what is not here is off anyway", Profile{Plugins: PluginSet{Disabled: []string{"DynamicResources", "NodeVolumeLimits"}}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pr, err := profileOf(tt.profile)
			if err != nil {
				t.Fatal(err)
			}
			for point, got := range pr.list() {
				want, differs := tt.want[point]
				if !differs {
					want = before[point]
				}
				if got != want {
					t.Errorf("%s: %s\nwant %s", point, got, want)
				}
			}
		})
	}
	for _, tt := range []struct {
		profile Profile
		want    string
	}{
		{Profile{Points: map[string]PluginSet{"filter": {Disabled: []string{"NodePort"}}}}, `plugins.filter: there is no plugin "NodePort"; there are `},
		{Profile{Plugins: PluginSet{Enabled: []string{"Mine"}}}, `plugins.multiPoint: there is no plugin "Mine"; there are `},
		{Profile{Points: map[string]PluginSet{"filter": {Enabled: []string{"ImageLocality"}}}}, "plugins.filter.enabled: ImageLocality does nothing there"},
		{Profile{Points: map[string]PluginSet{"filter": {Enabled: []string{"NodePorts", "NodePorts"}}}}, "plugins.filter.enabled: NodePorts is named twice"},
		{Profile{Points: map[string]PluginSet{"placementScore": {Enabled: []string{"NodePorts"}}}}, "plugins.placementScore: there is no such extension point"},
		{Profile{Plugins: PluginSet{Enabled: []string{"DynamicResources"}}}, "plugins.multiPoint.enabled: DynamicResources is not available"},
		{Profile{Points: map[string]PluginSet{"bind": {Disabled: []string{"DefaultBinder"}}}}, "plugins.bind.disabled: DefaultBinder cannot be disabled: there is no other; enable it again there"},
		{Profile{Plugins: PluginSet{Disabled: []string{"*"}}}, "plugins.multiPoint.disabled: DefaultBinder cannot be disabled"},
	} {
		_, err := profileOf(tt.profile)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %s", tt.profile, err, tt.want)
		}
		if own := tt.profile.Check(); own == nil || !strings.HasSuffix(fmt.Sprint(err), own.Error()) {
			t.Errorf("%+v: checked alone %v, else %v", tt.profile, own, err)
		}
	}
	if err := (Profile{}).Check(); err != nil {
		t.Error(err)
	}
	if !slices.Contains(absent, "NodeVolumeLimits") {
		t.Error("NodeVolumeLimits is here now: take it out of this test")
	}
}

// TestFilterOffAtOnePoint: a plugin that does not filter still scores.
func TestFilterOffAtOnePoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hard := func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
		}
		soft := func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectPreferNoSchedule}}
		}
		e := start(t, Config{Profiles: []Profile{{Points: map[string]PluginSet{"filter": {Disabled: []string{"TaintToleration"}}}}}}, testNode("hard", hard), testNode("soft", soft))
		if p := e.add(testPod("p", "", "")); p.Spec.NodeName != "hard" {
			t.Errorf("on %q, want the node whose taint does not filter here and does not score: %s", p.Spec.NodeName, message(p))
		}
	})
}
