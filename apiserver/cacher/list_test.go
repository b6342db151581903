package cacher

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
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

var listEverything = metav1.ListOptions{}

func TestListRevisions(t *testing.T) {
	w := start(t, func(c *Config) { c.ReadTimeout = 500 * time.Millisecond })
	a := w.create(t, pod("ns", "a"))
	w.create(t, pod("ns", "b"))
	w.relabel(t, "ns", "a", "new")
	last := w.remove(t, "ns", "b")
	exact := func(rev int64) (*List, error) {
		return w.pods.List(t.Context(), ListOptions{
			ResourceVersion:      fmt.Sprint(rev),
			ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		})
	}
	for rev, want := range map[int64]string{
		a.Revision():     "a ",
		a.Revision() + 1: "a b ",
		a.Revision() + 2: "a b ",
		last.Revision():  "a ",
	} {
		l, err := exact(rev)
		if err != nil {
			t.Fatal(err)
		}
		if names(l) != want || l.Revision != rev {
			t.Errorf("at %d: %sat %d, want %s", rev, names(l), l.Revision, want)
		}
	}
	l, err := w.pods.List(t.Context(), ListOptions{ResourceVersion: fmt.Sprint(a.Revision())})
	if err != nil || l.Revision < a.Revision() {
		t.Errorf("not older than %d: at %d, %v", a.Revision(), l.Revision, err)
	}
	// With a limit and no match, the revision is exact: so it was before match existed.
	l, err = w.pods.List(t.Context(), ListOptions{ResourceVersion: fmt.Sprint(a.Revision()), Limit: 5})
	if err != nil || l.Revision != a.Revision() {
		t.Errorf("limited list: %v, %v", l, err)
	}
	if _, err := exact(last.Revision() + 1000); !isTooLarge(err) {
		t.Errorf("list in the future: %v, want Too large resource version", err)
	}
	if _, err := w.pods.Get(t.Context(), "ns", "a", fmt.Sprint(last.Revision()+1000)); !isTooLarge(err) {
		t.Errorf("get in the future: %v, want Too large resource version", err)
	}
	for _, bad := range []string{"x", "-1", "99999999999999999999"} {
		if _, err := w.pods.List(t.Context(), ListOptions{ResourceVersion: bad}); !apierrors.IsBadRequest(err) {
			t.Errorf("list at %q: %v, want 400", bad, err)
		}
		// Only lists answer 400; upstream's gets and watches fail with 500.
		var invalid *field.Error
		if _, err := w.pods.Watch(t.Context(), WatchOptions{ResourceVersion: bad}); !errors.As(err, &invalid) {
			t.Errorf("watch at %q: %v, want an invalid resourceVersion", bad, err)
		}
	}
}

func isTooLarge(err error) bool {
	delay, retry := apierrors.SuggestsClientDelay(err)
	return apierrors.IsTimeout(err) && apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) && retry && delay == 1
}

// What history has forgotten the store still knows, until it is compacted.
func TestListBeyondHistory(t *testing.T) {
	w := start(t, func(c *Config) { c.History = 1 })
	for _, n := range []string{"a", "b", "c"} {
		w.create(t, pod("ns", n))
	}
	o := ListOptions{Selection: Selection{Namespace: "ns"}, Limit: 1}
	first, err := w.pods.List(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	w.relabel(t, "ns", "b", "new")
	w.remove(t, "ns", "c")
	w.relabel(t, "ns", "a", "new")
	w.consistent(t)
	o.Continue = first.Continue
	second, err := w.pods.List(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if names(second) != "b " || second.Items[0].Meta().GetLabels()["a"] != "" || *second.Remaining != 1 || second.Revision != first.Revision {
		t.Fatalf("second page %s: %+v", names(second), second)
	}
	rev, err := w.store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	o.Continue = second.Continue
	_, err = w.pods.List(t.Context(), o)
	var status apierrors.APIStatus
	if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) {
		t.Fatalf("list of a compacted revision: %v, want 410", err)
	}
	// The token in the error goes on with what is there now.
	o.Continue = status.Status().ListMeta.Continue
	if o.Continue == "" {
		t.Fatal("the error has no token to go on with")
	}
	w.create(t, pod("ns", "d"))
	rest, err := w.pods.List(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if names(rest) != "d " || rest.Revision <= first.Revision {
		t.Errorf("the rest: %s at %d", names(rest), rest.Revision)
	}
	if _, err := w.pods.List(t.Context(), ListOptions{
		ResourceVersion: fmt.Sprint(first.Revision), ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	}); !apierrors.IsResourceExpired(err) {
		t.Errorf("exact list of a compacted revision: %v, want 410", err)
	}
}

func TestListSelectors(t *testing.T) {
	w := start(t)
	for i := range 10 {
		p := pod("ns", fmt.Sprintf("p%d", i))
		p.Labels = map[string]string{"odd": fmt.Sprint(i%2 == 1)}
		w.create(t, p)
	}
	o := ListOptions{Selection: Selection{Labels: mustSelector(t, "odd=true")}, Limit: 2}
	got := ""
	for pages := 0; ; pages++ {
		l, err := w.pods.List(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if l.Remaining != nil {
			t.Error("remaining items are counted although a selector applies")
		}
		got += names(l)
		if o.Continue = l.Continue; o.Continue == "" {
			break
		}
		if pages > 5 {
			t.Fatal("the list does not end")
		}
	}
	if want := "p1 p3 p5 p7 p9 "; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// resourceVersion 0 takes everything at once.
	l, err := w.pods.List(t.Context(), ListOptions{ResourceVersion: "0", Limit: 2})
	if err != nil || len(l.Items) != 10 || l.Continue != "" {
		t.Errorf("list at 0: %d items, continue %q, %v", len(l.Items), l.Continue, err)
	}
}

func FuzzContinue(f *testing.F) {
	f.Add(encodeContinue(5, "ns/a\x00"))
	f.Add(encodeContinue(-1, "a"))
	f.Add("eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi9hIn0")
	f.Add("")
	f.Fuzz(func(t *testing.T, token string) {
		rev, start, err := decodeContinue(token)
		if err != nil {
			if !apierrors.IsBadRequest(err) {
				t.Errorf("%q: %v, want 400", token, err)
			}
			return
		}
		if rev == 0 || strings.HasPrefix(start, "/") || strings.Contains(start, "../") {
			t.Errorf("%q decodes to revision %d from %q", token, rev, start)
		}
		// A token is stable under another round.
		r, s, err := decodeContinue(encodeContinue(rev, start))
		if start != "" && (err != nil || r != rev || s != start) {
			t.Errorf("%q: %d %q becomes %d %q, %v", token, rev, start, r, s, err)
		}
	})
}

// Tokens of upstream's API server are ours, and the other way round.
func TestContinueForm(t *testing.T) {
	const theirs = `{"v":"meta.k8s.io/v1","rv":7,"start":"a\u0000"}`
	if got, want := encodeContinue(7, "a\x00"), base64.RawURLEncoding.EncodeToString([]byte(theirs)); got != want {
		t.Errorf("token %s, want %s", got, want)
	}
}
