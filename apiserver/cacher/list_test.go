package cacher

import (
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func mustSelector(t testing.TB, s string) labels.Selector {
	t.Helper()
	sel, err := labels.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return sel
}

func TestListPages(t *testing.T) {
	w := start(t)
	for _, n := range []string{"a", "b", "c", "d", "e"} {
		w.create(t, pod("ns", n))
	}
	w.create(t, pod("other", "x"))
	o := ListOptions{Selection: Selection{Namespace: "ns"}, Limit: 2}
	first, err := w.pods.List(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if names(first) != "a b " || first.Remaining == nil || *first.Remaining != 3 {
		t.Fatalf("first page %q, remaining %v", names(first), first.Remaining)
	}
	// What happens between pages does not show.
	w.remove(t, "ns", "d")
	w.relabel(t, "ns", "c", "new")
	w.create(t, pod("ns", "bb"))
	o.Continue = first.Continue
	second, err := w.pods.List(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if names(second) != "c d " || second.Revision != first.Revision || second.Items[0].Meta().GetLabels()["a"] != "" {
		t.Fatalf("second page %q at %d", names(second), second.Revision)
	}
	o.Continue = second.Continue
	third, err := w.pods.List(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if names(third) != "e " || third.Continue != "" {
		t.Fatalf("third page %q, continue %q", names(third), third.Continue)
	}
}
