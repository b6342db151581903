package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/plugins/imagelocality"
	"github.com/skiff-k8s/skiff/scheduler/plugins/interpodaffinity"
	"github.com/skiff-k8s/skiff/scheduler/plugins/nodeaffinity"
	"github.com/skiff-k8s/skiff/scheduler/plugins/nodename"
	"github.com/skiff-k8s/skiff/scheduler/plugins/nodeports"
	"github.com/skiff-k8s/skiff/scheduler/plugins/noderesources"
	"github.com/skiff-k8s/skiff/scheduler/plugins/nodeunschedulable"
	"github.com/skiff-k8s/skiff/scheduler/plugins/podtopologyspread"
	"github.com/skiff-k8s/skiff/scheduler/plugins/schedulinggates"
	"github.com/skiff-k8s/skiff/scheduler/plugins/tainttoleration"
	"github.com/skiff-k8s/skiff/scheduler/plugins/volumebinding"
	"github.com/skiff-k8s/skiff/scheduler/plugins/volumerestrictions"
	"github.com/skiff-k8s/skiff/scheduler/preempt"
)

// Profile configures the scheduling of the pods that name it in spec.schedulerName. The
// zero value but for its Name is upstream's default.
type Profile struct {
	Name string
	// Plugins chooses who takes part at all extension points (upstream's multiPoint), Points
	// at single ones, by upstream's names of them (preEnqueue, filter, …).
	Plugins PluginSet
	Points  map[string]PluginSet
	// Weights replace the default weights of scoring plugins.
	Weights map[string]int64
	// AddedAffinity holds for all the profile's pods.
	AddedAffinity *corev1.NodeAffinity
	Fit           noderesources.FitArgs
	// PercentageOfNodesToScore overrides the scheduler's when not 0.
	PercentageOfNodesToScore int32
	// Extra plugins come after the built-in ones, with weight 1 unless Weights says more.
	Extra []framework.Plugin
}

// defaultWeights are upstream's; others weigh 1.
var defaultWeights = map[string]int64{
	tainttoleration.Name:   3,
	nodeaffinity.Name:      2,
	podtopologyspread.Name: 2,
	interpodaffinity.Name:  2,
}

// profile is a Profile's plugins by extension point.
type profile struct {
	Profile
	preEnqueue  []framework.PreEnqueue
	preFilters  []preFilter
	filters     []filter
	postFilters []framework.PostFilter
	scorers     []scorer
	reserves    []framework.Reserve
	permits     []framework.Permit
	preBinds    []framework.PreBind
	binds       []framework.Bind
	// hints by plugin; a plugin without any is helped by every event.
	hints map[string][]framework.Hint
}

type filter struct {
	name        string
	filter      framework.Filter
	incremental framework.Incremental // may be nil
}

type preFilter struct {
	name   string
	plugin framework.PreFilter
	filter int // which of the filters is the same plugin's; -1: none
}

type scorer struct {
	pre       framework.PreScore // may be nil
	score     framework.Score
	normalize framework.Normalizer // may be nil
	weight    int64
}

var anyEvent = []framework.Hint{{Kinds: ^framework.EventKind(0)}}

// Check says what is wrong with a profile, without a scheduler.
func (p Profile) Check() error {
	_, err := choose(p, p.plugins([]framework.Plugin{
		(*volumerestrictions.Plugin)(nil), (*volumebinding.Plugin)(nil), (*podtopologyspread.Plugin)(nil), (*interpodaffinity.Plugin)(nil), (*preempt.Plugin)(nil),
	}))
	return err
}

// plugins are all that there are, those among them that need the scheduler itself given.
func (p Profile) plugins(shared []framework.Plugin) []framework.Plugin {
	all := []framework.Plugin{
		schedulinggates.Plugin{},
		nodename.Plugin{},
		nodeunschedulable.Plugin{},
		tainttoleration.Plugin{},
		nodeaffinity.New(p.AddedAffinity),
		nodeports.Plugin{},
		noderesources.NewFit(p.Fit),
		noderesources.NewBalanced(nil),
		imagelocality.Plugin{},
	}
	return slices.Concat(all, shared, p.Extra)
}

func newProfile(p Profile, shared []framework.Plugin) (*profile, error) {
	if p.Name == "" {
		p.Name = corev1.DefaultSchedulerName
	}
	all := p.plugins(shared)
	at, err := choose(p, all)
	if err != nil {
		return nil, fmt.Errorf("scheduler profile %s: %w", p.Name, err)
	}
	pr := &profile{Profile: p, hints: map[string][]framework.Hint{}}
	pr.fill(at)
	for _, pl := range all {
		pr.hints[pl.Name()] = anyEvent
		if x, ok := pl.(framework.Requeuer); ok {
			pr.hints[pl.Name()] = x.Hints()
		}
	}
	return pr, nil
}

// of are plugins as what an extension point calls.
func of[T any](list []framework.Plugin) []T {
	var out []T
	for _, pl := range list {
		out = append(out, pl.(T))
	}
	return out
}

func (pr *profile) fill(at chosen) {
	pr.preEnqueue = of[framework.PreEnqueue](at["preEnqueue"])
	pr.postFilters = of[framework.PostFilter](at["postFilter"])
	pr.reserves = of[framework.Reserve](at["reserve"])
	pr.permits = of[framework.Permit](at["permit"])
	pr.preBinds = of[framework.PreBind](at["preBind"])
	pr.binds = of[framework.Bind](at["bind"])
	takes := func(point string, pl framework.Plugin) bool {
		return slices.ContainsFunc(at[point], func(o framework.Plugin) bool { return o.Name() == pl.Name() })
	}
	for _, pl := range at["filter"] {
		f := filter{name: pl.Name(), filter: pl.(framework.Filter)}
		if takes("preFilter", pl) {
			f.incremental, _ = pl.(framework.Incremental)
		}
		pr.filters = append(pr.filters, f)
	}
	for _, pl := range at["preFilter"] {
		i := slices.IndexFunc(pr.filters, func(f filter) bool { return f.name == pl.Name() })
		pr.preFilters = append(pr.preFilters, preFilter{name: pl.Name(), plugin: pl.(framework.PreFilter), filter: i})
	}
	for _, pl := range at["score"] {
		s := scorer{score: pl.(framework.Score), weight: 1}
		if takes("preScore", pl) {
			s.pre = pl.(framework.PreScore)
		}
		s.normalize, _ = pl.(framework.Normalizer)
		if w, ok := defaultWeights[pl.Name()]; ok {
			s.weight = w
		}
		if w, ok := pr.Weights[pl.Name()]; ok {
			s.weight = w
		}
		pr.scorers = append(pr.scorers, s)
	}
}

// hintsOf joins the hints of plugins.
func (pr *profile) hintsOf(names []string) []framework.Hint {
	var all []framework.Hint
	for _, n := range names {
		all = append(all, pr.hints[n]...)
	}
	return all
}

// gate asks the PreEnqueue plugins.
func (pr *profile) gate(p *corev1.Pod) *framework.Status {
	for _, pl := range pr.preEnqueue {
		if st := pl.PreEnqueue(p); st != nil {
			return st
		}
	}
	return nil
}
