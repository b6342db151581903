package metricsapi

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	now := time.Unix(2000, 0)
	// As upstream's kubelet writes it; the order of labels and families is of no account.
	text := `# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="a",namespace="ns",pod="p"} 4.5e-05 1000500
container_cpu_usage_seconds_total{pod="p",container="b,\"}\\",namespace="ns"} 7
container_memory_working_set_bytes{container="a",namespace="ns",pod="p"} 1.048576e+06 1000500
container_start_time_seconds{container="a",namespace="ns",pod="p"} 999.25
container_swap_usage_bytes{container="a",namespace="ns",pod="p"} 0 1000500
node_cpu_usage_seconds_total 12.5 1000000
node_memory_working_set_bytes 2048 1000000
pod_cpu_usage_seconds_total{namespace="ns",pod="p"} 9 1000500
resource_scrape_error 0
`
	got, err := parse(strings.NewReader(text), now)
	if err != nil {
		t.Fatal(err)
	}
	want := &reading{
		node: counters{at: time.Unix(1000, 0), cpu: 12.5, memory: 2048},
		pods: map[podKey]map[string]*counters{{"ns", "p"}: {
			"a":       {at: time.UnixMilli(1000500), cpu: 4.5e-05, memory: 1 << 20, started: time.UnixMilli(999250)},
			"b,\"}\\": {at: now, cpu: 7},
		}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestParseTellsWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "does not tell the node's use",
		"node_cpu":                        "no value",
		"{a=\"b\"} 1":                     "no value",
		"x{a=\"b\"":                       "labels do not end",
		"x{a=\"b":                         "a label does not end",
		"x{a=\"b\\":                       "a label does not end",
		"x{a} 1":                          "labels do not end",
		"x many":                          "no number",
		"x 1 soon":                        "no timestamp",
		"x 1 2 3":                         "want a value",
		"resource_scrape_error 1":         "does not tell the node's use",
		"x " + strings.Repeat("1", 2<<20): "token too long",
	} {
		if _, err := parse(strings.NewReader(text), time.Unix(0, 0)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

func TestBetween(t *testing.T) {
	at := func(s float64) time.Time { return time.UnixMilli(int64(s * 1000)) }
	key := podKey{"ns", "p"}
	one := func(c counters) *reading {
		return &reading{node: counters{at: c.at, cpu: 1}, pods: map[podKey]map[string]*counters{key: {"c": &c}}}
	}
	none := &reading{node: counters{at: at(100)}}
	for name, tt := range map[string]struct {
		a, b *reading
		want *usage
	}{
		"a rate":                    {one(counters{at: at(100), cpu: 10}), one(counters{at: at(110), cpu: 15, memory: 7}), &usage{at(110), 10 * time.Second, 5e8, 7}},
		"idle":                      {one(counters{at: at(100), cpu: 10}), one(counters{at: at(110), cpu: 10}), &usage{at(110), 10 * time.Second, 0, 0}},
		"new":                       {none, one(counters{at: at(110), cpu: 3, started: at(104)}), &usage{at(110), 6 * time.Second, 5e8, 0}},
		"too new":                   {none, one(counters{at: at(110), cpu: 3, started: at(109.9)}), nil},
		"new, of unknown age":       {none, one(counters{at: at(110), cpu: 3}), nil},
		"started anew":              {one(counters{at: at(100), cpu: 10, started: at(50)}), one(counters{at: at(110), cpu: 20, started: at(105)}), &usage{at(110), 5 * time.Second, 4e9, 0}},
		"started anew, age unknown": {one(counters{at: at(100), cpu: 10}), one(counters{at: at(110), cpu: 2}), nil},
		"not read again":            {one(counters{at: at(100), cpu: 10}), one(counters{at: at(100), cpu: 10}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := between(tt.a, tt.b).pods[key]["c"]
			if ok != (tt.want != nil) || ok && got != *tt.want {
				t.Errorf("got %+v (%t), want %+v", got, ok, tt.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("node_cpu_usage_seconds_total 1\ncontainer_cpu_usage_seconds_total{a=\"\\n\",b=\"\"} 1 2\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parse(strings.NewReader(text), time.Unix(1, 0))
		if (r == nil) == (err == nil) {
			t.Fatalf("reading %v, error %v", r, err)
		}
	})
}
