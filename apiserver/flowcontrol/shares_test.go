package flowcontrol

import (
	"maps"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/utils/ptr"
)

// The standard levels on a server of 600 seats, as kube-apiserver 1.37 with default flags
// shows them in its metrics.
func TestNominalSeats(t *testing.T) {
	specs := map[string]*flowcontrolv1.PriorityLevelConfigurationSpec{}
	for _, p := range append(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations...) {
		specs[p.Name] = &p.Spec
	}
	got := nominalSeats(600, specs)
	for name, want := range map[string]seats{
		"exempt":          {exempt: true, nominal: 0, least: 0, most: 600},
		"catch-all":       {nominal: 13, least: 13, most: 600},
		"global-default":  {nominal: 49, least: 24, most: 600},
		"leader-election": {nominal: 25, least: 25, most: 600},
		"node-high":       {nominal: 98, least: 73, most: 600},
		"system":          {nominal: 74, least: 50, most: 600},
		"workload-high":   {nominal: 98, least: 49, most: 600},
		"workload-low":    {nominal: 245, least: 24, most: 600},
	} {
		if got[name] != want {
			t.Errorf("%s: %+v, want %+v", name, got[name], want)
		}
	}
}

func TestShare(t *testing.T) {
	a := seats{nominal: 100, least: 50, most: 600}
	bounded := seats{nominal: 100, least: 50, most: 120}
	for name, test := range map[string]struct {
		wishes map[string]wish
		want   map[string]int
	}{
		"nobody wants much: all by their least":      {map[string]wish{"a": {seats: a}, "b": {seats: a}}, map[string]int{"a": 100, "b": 100}},
		"one wants more than its own: it borrows":    {map[string]wish{"a": {a, 300, 300}, "b": {seats: a}}, map[string]int{"a": 150, "b": 50}},
		"it may not borrow so much":                  {map[string]wish{"a": {bounded, 300, 300}, "b": {a, 10, 10}}, map[string]int{"a": 120, "b": 80}},
		"both want all: each has its own":            {map[string]wish{"a": {a, 500, 500}, "b": {a, 500, 500}}, map[string]int{"a": 100, "b": 100}},
		"one uses half of its own: the rest is lent": {map[string]wish{"a": {a, 300, 300}, "b": {a, 75, 75}}, map[string]int{"a": 125, "b": 75}},
		"exempt ones take what they take": {map[string]wish{"x": {seats{exempt: true}, 100, 50}, "a": {a, 500, 500}, "b": {a, 500, 500}},
			map[string]int{"x": 100, "a": 50, "b": 50}},
		"more than there is": {map[string]wish{"x": {seats{exempt: true}, 900, 900}, "a": {a, 500, 500}}, map[string]int{"x": 900, "a": 1}},
	} {
		if got := share(200, test.wishes); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func FuzzShare(f *testing.F) {
	f.Add(600, 100, 50, 600, 300.0, 200.0, 40, 40, 40, 0.0, 0.0)
	f.Fuzz(func(t *testing.T, total, n1, l1, m1 int, h1, s1 float64, n2, l2, m2 int, h2, s2 float64) {
		clamp := func(x int) int { return max(0, min(x, 1<<20)) }
		fit := func(x float64) float64 {
			if !(x >= 0) {
				return 0
			}
			return min(x, 1<<20)
		}
		total, n1, n2 = max(1, clamp(total)), clamp(n1), clamp(n2)
		one := wish{seats{nominal: n1, least: min(clamp(l1), n1), most: max(clamp(m1), n1)}, fit(h1), fit(s1)}
		two := wish{seats{nominal: n2, least: min(clamp(l2), n2), most: max(clamp(m2), n2)}, fit(h2), fit(s2)}
		sum := 0
		for name, got := range share(total, map[string]wish{"one": one, "two": two}) {
			if got < 1 {
				t.Errorf("%s: %d", name, got)
			}
			sum += got
		}
		if sum > total+2 { // each rounds, and has one at least
			t.Errorf("%d of %d seats", sum, total)
		}
	})
}

func TestDemand(t *testing.T) {
	start := time.Unix(0, 0)
	d := demand{since: start, last: start}
	d.set(start, 10)
	d.set(start.Add(5*time.Second), 0)
	high, smooth := d.take(start.Add(10 * time.Second))
	if high != 10 || smooth != 10 { // mean 5, deviation 5
		t.Errorf("half the time ten: high %v, smooth %v", high, smooth)
	}
	for range 30 { // 300 s
		high, smooth = d.take(d.last.Add(10 * time.Second))
	}
	if high != 0 || smooth < 4 || smooth > 6 {
		t.Errorf("five minutes later: high %v, smooth %v, want about half", high, smooth)
	}
}

func TestSharesOfObjectsWithoutFields(t *testing.T) {
	limited := &flowcontrolv1.PriorityLevelConfigurationSpec{Type: "Limited", Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{}}
	if sharesOf(limited) != 30 {
		t.Errorf("%d", sharesOf(limited))
	}
	if _, borrow := percentsOf(limited); borrow != nil {
		t.Error("it may borrow without bound")
	}
	limited.Limited.NominalConcurrencyShares = ptr.To(int32(0))
	if got := nominalSeats(600, map[string]*flowcontrolv1.PriorityLevelConfigurationSpec{"zero": limited})["zero"]; got.nominal != 0 {
		t.Errorf("%+v", got)
	}
}
