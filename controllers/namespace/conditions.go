package namespace

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// outcome is what one pass over a namespace's content found.
type outcome struct {
	discovery  error
	failures   []error
	remaining  map[schema.GroupResource]int
	finalizers map[string]int
	// waiting: pods still terminate, so that the rest was not looked at.
	waiting bool
}

// conditions are those a terminating namespace carries, with upstream's words.
func (o *outcome) conditions() []corev1.NamespaceCondition {
	yes := func(t corev1.NamespaceConditionType, reason, message string) corev1.NamespaceCondition {
		return corev1.NamespaceCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message}
	}
	no := func(t corev1.NamespaceConditionType, reason, message string) corev1.NamespaceCondition {
		return corev1.NamespaceCondition{Type: t, Status: corev1.ConditionFalse, Reason: reason, Message: message}
	}
	all := []corev1.NamespaceCondition{
		no(corev1.NamespaceDeletionDiscoveryFailure, "ResourcesDiscovered", "All resources successfully discovered"),
		no(corev1.NamespaceDeletionGVParsingFailure, "ParsedGroupVersions", "All legacy kube types successfully parsed"),
		no(corev1.NamespaceDeletionContentFailure, "ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
		no(corev1.NamespaceContentRemaining, "ContentRemoved", "All content successfully removed"),
		no(corev1.NamespaceFinalizersRemaining, "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
	}
	if o.discovery != nil {
		all[0] = yes(corev1.NamespaceDeletionDiscoveryFailure, "DiscoveryFailed", o.discovery.Error())
	}
	if len(o.failures) > 0 {
		messages := make([]string, len(o.failures))
		for i, err := range o.failures {
			messages[i] = err.Error()
		}
		slices.Sort(messages)
		all[2] = yes(corev1.NamespaceDeletionContentFailure, "ContentDeletionFailed", "Failed to delete all resource types, "+
			fmt.Sprintf("%d remaining: %s", len(messages), strings.Join(messages, ", ")))
	}
	if len(o.remaining) > 0 {
		var parts []string
		for gr, n := range o.remaining {
			parts = append(parts, fmt.Sprintf("%s.%s has %d resource instances", gr.Resource, gr.Group, n))
		}
		slices.Sort(parts)
		all[3] = yes(corev1.NamespaceContentRemaining, "SomeResourcesRemain", "Some resources are remaining: "+strings.Join(parts, ", "))
	}
	if len(o.finalizers) > 0 {
		var parts []string
		for f, n := range o.finalizers {
			parts = append(parts, fmt.Sprintf("%s in %d resource instances", f, n))
		}
		slices.Sort(parts)
		all[4] = yes(corev1.NamespaceFinalizersRemaining, "SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: "+strings.Join(parts, ", "))
	}
	return all
}

// merge sets conditions and reports whether anything changed; transition times stay
// while the status does.
func merge(current, wanted []corev1.NamespaceCondition, now time.Time) ([]corev1.NamespaceCondition, bool) {
	next := slices.Clone(current)
	changed := false
	for _, w := range wanted {
		w.LastTransitionTime = metav1.NewTime(now)
		i := slices.IndexFunc(next, func(c corev1.NamespaceCondition) bool { return c.Type == w.Type })
		switch {
		case i < 0:
			next = append(next, w)
			changed = true
		case next[i].Status != w.Status || next[i].Reason != w.Reason || next[i].Message != w.Message:
			if next[i].Status == w.Status {
				w.LastTransitionTime = next[i].LastTransitionTime
			}
			next[i] = w
			changed = true
		}
	}
	return next, changed
}
