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
)

// Profile configures the scheduling of the pods that name it in spec.schedulerName. The
// zero value but for its Name is upstream's default.
type Profile struct {
	Name string
	// Disabled plugins take no part.
	Disabled []string
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
	pre         framework.PreFilter // may be nil
	filter      framework.Filter    // may be nil
	incremental framework.Incremental
}

type scorer struct {
	pre       framework.PreScore // may be nil
	score     framework.Score
	normalize framework.Normalizer // may be nil
	weight    int64
}

var anyEvent = []framework.Hint{{Kinds: ^framework.EventKind(0)}}

func newProfile(p Profile, more []framework.Plugin) (*profile, error) {
	if p.Name == "" {
		p.Name = corev1.DefaultSchedulerName
	}
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
	all = append(append(all, more...), p.Extra...)
	pr := &profile{Profile: p, hints: map[string][]framework.Hint{}}
	var names []string
	for _, pl := range all {
		names = append(names, pl.Name())
		if slices.Contains(p.Disabled, pl.Name()) {
			continue
		}
		pr.add(pl)
	}
	for _, d := range p.Disabled {
		if !slices.Contains(names, d) {
			return nil, fmt.Errorf("scheduler profile %s: disabled plugin %q does not exist; there are %v", p.Name, d, names)
		}
	}
	return pr, nil
}

func (pr *profile) add(pl framework.Plugin) {
	if x, ok := pl.(framework.PreEnqueue); ok {
		pr.preEnqueue = append(pr.preEnqueue, x)
	}
	f := filter{name: pl.Name()}
	f.pre, _ = pl.(framework.PreFilter)
	f.filter, _ = pl.(framework.Filter)
	f.incremental, _ = pl.(framework.Incremental)
	if f.pre != nil || f.filter != nil {
		pr.filters = append(pr.filters, f)
	}
	if x, ok := pl.(framework.PostFilter); ok {
		pr.postFilters = append(pr.postFilters, x)
	}
	if x, ok := pl.(framework.Score); ok {
		s := scorer{score: x, weight: 1}
		s.pre, _ = pl.(framework.PreScore)
		s.normalize, _ = pl.(framework.Normalizer)
		if w, ok := defaultWeights[pl.Name()]; ok {
			s.weight = w
		}
		if w, ok := pr.Weights[pl.Name()]; ok {
			s.weight = w
		}
		pr.scorers = append(pr.scorers, s)
	}
	if x, ok := pl.(framework.Reserve); ok {
		pr.reserves = append(pr.reserves, x)
	}
	if x, ok := pl.(framework.Permit); ok {
		pr.permits = append(pr.permits, x)
	}
	if x, ok := pl.(framework.PreBind); ok {
		pr.preBinds = append(pr.preBinds, x)
	}
	if x, ok := pl.(framework.Bind); ok {
		pr.binds = append(pr.binds, x)
	}
	pr.hints[pl.Name()] = anyEvent
	if x, ok := pl.(framework.Requeuer); ok {
		pr.hints[pl.Name()] = x.Hints()
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
