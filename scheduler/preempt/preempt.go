// Package preempt has the plugin DefaultPreemption: when a pod fits nowhere, find the node
// where deleting pods of lower priority makes room at the least harm.
//
// Owns: the choice of node and victims. Must not: delete them; the scheduler does.
package preempt

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Name of the plugin in configurations.
const Name = "DefaultPreemption"

// A tenth of the nodes, at least 100, are candidates enough.
const (
	minCandidatePercent = 10
	minCandidates       = 100
)

// Simulator tries out changes of nodes within the cycle that failed.
type Simulator interface {
	// Fits filters a node as it is now, with nominated pods.
	Fits(n *snapshot.Node) *framework.Status
	Place(p *snapshot.Pod, n *snapshot.Node)
	Displace(p *snapshot.Pod, n *snapshot.Node)
}

// Plugin is DefaultPreemption.
type Plugin struct {
	sim    Simulator
	pdbs   func() ([]*policyv1.PodDisruptionBudget, error)
	offset func(n int) int // where to begin among n nodes
	evict  func(c *framework.Cycle, n *framework.Nomination)
}

// New makes the plugin. evict deletes a nomination's victims.
func New(sim Simulator, pdbs func() ([]*policyv1.PodDisruptionBudget, error), offset func(n int) int, evict func(*framework.Cycle, *framework.Nomination)) *Plugin {
	return &Plugin{sim, pdbs, offset, evict}
}

// Name of the plugin.
func (*Plugin) Name() string { return Name }

var (
	notHelpful = framework.NewStatus(framework.Unresolvable, Name, "Preemption is not helpful for scheduling")
	noVictims  = framework.NewStatus(framework.Unresolvable, Name, "No preemption victims found for incoming pod")
)

func refused(text string) *framework.Status {
	return framework.NewStatus(framework.Unschedulable, Name, "preemption: "+text)
}

// candidate is a node and who would have to go.
type candidate struct {
	node    *snapshot.Node
	victims []*snapshot.Pod // most important first
	broken  int             // budgets' violations
}

// PostFilter finds a node to nominate.
func (pl *Plugin) PostFilter(c *framework.Cycle, statuses []*framework.Status) (*framework.Nomination, *framework.Status) {
	if why := pl.ineligible(c, statuses); why != "" {
		return nil, refused(why)
	}
	budgets, err := pl.pdbs()
	if err != nil {
		return nil, framework.Failed(Name, fmt.Errorf("listing PodDisruptionBudgets: %w", err))
	}
	counts := map[string]int{}
	var nodes []*snapshot.Node
	for _, n := range c.Snap.Nodes {
		switch st := statusOf(statuses, n.Index); {
		case st != nil && st.Code == framework.Unschedulable:
			nodes = append(nodes, n)
		default:
			counts[notHelpful.Reasons[0]]++
		}
	}
	want := max(len(c.Snap.Nodes)*minCandidatePercent/100, minCandidates)
	var found []candidate
	start := 0
	if len(nodes) > 0 {
		start = pl.offset(len(nodes))
	}
	clean := 0
	for i := range nodes {
		n := nodes[(start+i)%len(nodes)]
		cand, st := pl.try(c, n, budgets)
		if st != nil {
			for _, r := range st.Reasons {
				counts[r]++
			}
			continue
		}
		found = append(found, cand)
		if cand.broken == 0 {
			clean++
		}
		if len(found) >= want && clean > 0 {
			break
		}
	}
	if len(found) == 0 {
		parts := make([]string, 0, len(counts))
		for r, n := range counts {
			parts = append(parts, fmt.Sprintf("%d %s", n, r))
		}
		slices.Sort(parts)
		return &framework.Nomination{}, refused(fmt.Sprintf("0/%d nodes are available: %s.", len(c.Snap.Nodes), strings.Join(parts, ", ")))
	}
	best := found[0]
	for _, cand := range found[1:] {
		if better(cand, best) {
			best = cand
		}
	}
	nomination := &framework.Nomination{Node: best.node.Name(), Victims: best.victims}
	pl.evict(c, nomination)
	return nomination, nil
}

func statusOf(statuses []*framework.Status, i int) *framework.Status {
	if i >= 0 && i < len(statuses) {
		return statuses[i]
	}
	return nil
}

// ineligible says why a pod may not preempt, or "".
func (pl *Plugin) ineligible(c *framework.Cycle, statuses []*framework.Status) string {
	if p := c.Pod.Spec.PreemptionPolicy; p != nil && *p == corev1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	if c.Pod.Status.NominatedNodeName == "" {
		return ""
	}
	n := c.Snap.Node(c.Pod.Status.NominatedNodeName)
	if n == nil {
		return ""
	}
	if st := statusOf(statuses, n.Index); st != nil && st.Code == framework.Unresolvable {
		return "" // the room it waits for will not help it any more: it may look elsewhere
	}
	for _, q := range n.Pods {
		if q.DeletionTimestamp == nil || q.Priority >= c.Pod.Priority {
			continue
		}
		for _, cond := range q.Status.Conditions {
			if cond.Type == corev1.DisruptionTarget && cond.Status == corev1.ConditionTrue && cond.Reason == corev1.PodReasonPreemptionByScheduler {
				return "not eligible due to a terminating pod on the nominated node."
			}
		}
	}
	return ""
}

// try takes all pods of lower priority off a node and, if the pod fits then, puts back
// as many as it can, the important ones first.
func (pl *Plugin) try(c *framework.Cycle, n *snapshot.Node, budgets []*policyv1.PodDisruptionBudget) (candidate, *framework.Status) {
	var lower []*snapshot.Pod
	for _, q := range n.Pods {
		if q.Priority < c.Pod.Priority {
			lower = append(lower, q)
		}
	}
	if len(lower) == 0 {
		return candidate{}, noVictims
	}
	slices.SortFunc(lower, moreImportant)
	gone := map[types.UID]*snapshot.Pod{}
	for _, q := range lower {
		pl.sim.Displace(q, n)
		gone[q.UID] = q
	}
	defer func() {
		for _, q := range slices.Collect(maps.Values(gone)) {
			pl.sim.Place(q, n)
		}
	}()
	if st := pl.sim.Fits(n); st != nil {
		return candidate{}, st
	}
	cand := candidate{node: n}
	violating, others := byBudget(lower, budgets)
	for i, group := range [][]*snapshot.Pod{violating, others} {
		for _, q := range group {
			pl.sim.Place(q, n)
			if pl.sim.Fits(n) == nil {
				delete(gone, q.UID)
				continue
			}
			pl.sim.Displace(q, n)
			cand.victims = append(cand.victims, q)
			if i == 0 {
				cand.broken++
			}
		}
	}
	slices.SortFunc(cand.victims, moreImportant)
	return cand, nil
}

func moreImportant(a, b *snapshot.Pod) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), startOf(a).Compare(startOf(b)), cmp.Compare(a.UID, b.UID))
}

// startOf is when a pod started; one that has not counts as starting now.
func startOf(p *snapshot.Pod) time.Time {
	if p.Status.StartTime == nil {
		return time.Unix(math.MaxInt32, 0)
	}
	return p.Status.StartTime.Time
}

// byBudget tells pods whose deletion would break a budget from the others.
func byBudget(pods []*snapshot.Pod, budgets []*policyv1.PodDisruptionBudget) (violating, others []*snapshot.Pod) {
	allowed := make([]int32, len(budgets))
	selectors := make([]labels.Selector, len(budgets))
	for i, b := range budgets {
		allowed[i] = b.Status.DisruptionsAllowed
		if s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && !s.Empty() {
			selectors[i] = s
		}
	}
	for _, p := range pods {
		broken := false
		for i, b := range budgets {
			if len(p.Labels) == 0 || b.Namespace != p.Namespace || selectors[i] == nil || !selectors[i].Matches(labels.Set(p.Labels)) {
				continue
			}
			if _, counted := b.Status.DisruptedPods[p.Name]; counted {
				continue
			}
			if allowed[i]--; allowed[i] < 0 {
				broken = true // it stands for itself: other budgets are not charged for it
				break
			}
		}
		if broken {
			violating = append(violating, p)
		} else {
			others = append(others, p)
		}
	}
	return violating, others
}

// better compares candidates: fewer broken budgets, then less important victims, by the
// highest priority, by their sum, by their number, then the one whose most important
// victims started last.
func better(a, b candidate) bool {
	sum := func(c candidate) int64 {
		var s int64
		for _, v := range c.victims {
			s += int64(v.Priority) + math.MaxInt32 + 1 // all count, also negative ones
		}
		return s
	}
	top := func(c candidate) int32 {
		if len(c.victims) == 0 {
			return math.MinInt32
		}
		return c.victims[0].Priority
	}
	earliest := func(c candidate) time.Time {
		var t time.Time
		for _, v := range c.victims {
			if v.Priority == top(c) && (t.IsZero() || startOf(v).Before(t)) {
				t = startOf(v)
			}
		}
		return t
	}
	return cmp.Or(
		cmp.Compare(a.broken, b.broken),
		cmp.Compare(top(a), top(b)),
		cmp.Compare(sum(a), sum(b)),
		cmp.Compare(len(a.victims), len(b.victims)),
		earliest(b).Compare(earliest(a)),
	) < 0
}
