package podautoscaler

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	custommetrics "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	resourcemetrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// oneCase is an autoscaler and what becomes of its world, a step each period. The first step
// is what the controller finds when it starts. test/upstream/autoscaler reads the same.
type oneCase struct {
	Autoscaler autoscalingv2.HorizontalPodAutoscaler
	Steps      []step
}

type step struct {
	Autoscaler, Rival *autoscalingv2.HorizontalPodAutoscaler `json:",omitempty"`
	Replicas          *int32                                 `json:",omitempty"`
	Selector          string
	Has               int32
	Pods              []corev1.Pod
	Usage             []resourcemetrics.PodMetrics
	OfPods            map[string][]custommetrics.MetricValue
	Objects           map[string]int64
	External          map[string][]int64
	Errors            map[string]string
}

// trace is what a controller did: after each step, and all that it told.
type trace struct {
	Status   []autoscalingv2.HorizontalPodAutoscalerStatus
	Replicas []int32
	Events   []string
	Told     int
}

// told is after how many events about one object client-go drops some.
const told = 25

const namespace = "ns"

// TestUpstreamAgrees gives the same random autoscalers, pods and metrics to upstream's whole
// controller and to this one, each in a bubble with a clock of its own, and wants the same
// statuses, sizes and events. make -C test/upstream autoscaler runs it; SKIFF_ROUNDS, SKIFF_SEED.
func TestUpstreamAgrees(t *testing.T) {
	program := os.Getenv("SKIFF_UPSTREAM_AUTOSCALER")
	if program == "" {
		t.Skip("SKIFF_UPSTREAM_AUTOSCALER names no program; make -C test/upstream autoscaler does")
	}
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return otherwise
	}
	rounds, seed := number("SKIFF_ROUNDS", 2000), number("SKIFF_SEED", 1)
	if os.Getenv("SKIFF_RECORD") != "" {
		rounds, seed = recordedRounds, recordedSeed
	}
	cases := make([]oneCase, rounds)
	for i := range cases {
		cases[i] = randomCase(uint64(seed + i))
	}
	begin := time.Now()
	theirs := ask(t, program, cases)
	t.Logf("upstream's took %s", time.Since(begin))
	if os.Getenv("SKIFF_RECORD") != "" {
		writeRecord(t, theirs)
	}
	seen, differ := map[string]int{}, 0
	for i := range cases {
		var ours trace
		synctest.Test(t, func(t *testing.T) { ours = play(t, &cases[i]) })
		for _, s := range theirs[i].Status {
			for _, c := range s.Conditions {
				seen[string(c.Type)+" "+c.Reason]++
			}
		}
		if diff := compare(theirs[i], ours); diff != "" {
			if differ++; differ <= 5 {
				raw, _ := json.Marshal(cases[i])
				t.Errorf("seed %d: %s\ncase %s", seed+i, diff, raw)
			}
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%6d %s", seen[reason], reason)
	}
	if differ > 0 {
		t.Errorf("%d of %d cases differ", differ, rounds)
	}
	for _, want := range []string{"AbleToScale ScaleDownStabilized", "AbleToScale ScaleUpStabilized", "AbleToScale FailedGetScale", "AbleToScale FailedUpdateScale", "AbleToScale SucceededRescale",
		"ScalingActive AmbiguousSelector", "ScalingActive InvalidSelector", "ScalingActive ScalingDisabled", "ScalingActive FailedGetResourceMetric", "ScalingActive FailedGetContainerResourceMetric",
		"ScalingActive FailedGetPodsMetric", "ScalingActive FailedGetObjectMetric", "ScalingActive FailedGetExternalMetric",
		"ScalingLimited ScaleUpLimit", "ScalingLimited ScaleDownLimit", "ScalingLimited TooFewReplicas", "ScalingLimited TooManyReplicas", "ScaledToZero ScaledToZero"} {
		if rounds >= 500 && seen[want] == 0 {
			t.Errorf("%s was never seen", want)
		}
	}
}

// The recorded answers are to these seeds.
const (
	recordedRounds, recordedSeed = 60, 1000
	record                       = "testdata/upstream.json.gz"
)

// TestUpstreamAgreed compares with what upstream's controller answered once; SKIFF_RECORD=1
// make -C test/upstream autoscaler records it anew.
func TestUpstreamAgreed(t *testing.T) {
	theirs := readRecord(t)
	if len(theirs) != recordedRounds {
		t.Fatalf("%s has %d answers, not %d", record, len(theirs), recordedRounds)
	}
	for i := range theirs {
		c := randomCase(uint64(recordedSeed + i))
		synctest.Test(t, func(t *testing.T) {
			if diff := compare(theirs[i], play(t, &c)); diff != "" {
				t.Errorf("seed %d: %s", recordedSeed+i, diff)
			}
		})
	}
}

func readRecord(t *testing.T) (all []trace) {
	t.Helper()
	file, err := os.Open(record)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	r, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(r).Decode(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

func writeRecord(t *testing.T, all []trace) {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if err := errors.Join(json.NewEncoder(w).Encode(all), w.Close(), os.MkdirAll("testdata", 0o755), os.WriteFile(record, b.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// ask has upstream's controller play all cases.
func ask(t *testing.T, program string, cases []oneCase) []trace {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "cases"), filepath.Join(dir, "traces")
	raw, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run", "^TestAnswer$")
	cmd.Env = append(os.Environ(), "SKIFF_CASES="+in, "SKIFF_TRACES="+out)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%.4000s", program, err, text)
	}
	if raw, err = os.ReadFile(out); err != nil {
		t.Fatal(err)
	}
	var all []trace
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// compare says where two traces differ first.
func compare(theirs, ours trace) string {
	text := func(v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			return err.Error()
		}
		return plain(string(raw))
	}
	for i := range theirs.Status {
		undefined(&theirs.Status[i], &ours.Status[i])
		if a, b := text(theirs.Status[i]), text(ours.Status[i]); a != b {
			return fmt.Sprintf("step %d: upstream's status\n%s\nours\n%s", i, a, b)
		}
		if a, b := theirs.Replicas[i], ours.Replicas[i]; a != b {
			return fmt.Sprintf("step %d: upstream has %d replicas, we have %d", i, a, b)
		}
	}
	only := func(a, b []string) (out []string) {
		for _, s := range a {
			if !slices.ContainsFunc(b, func(o string) bool { return plain(o) == plain(s) }) {
				out = append(out, s)
			}
		}
		return out
	}
	if a, b := only(theirs.Events, ours.Events), only(ours.Events, theirs.Events); len(a) > 0 || len(b) > 0 && theirs.Told < told {
		return fmt.Sprintf("events: only upstream %q, only ours %q", a, b)
	}
	return ""
}

var (
	anyPod  = regexp.MustCompile(`\bPod web-[0-9]+`)
	anyPair = regexp.MustCompile(`\[(ns/\w+) (ns/\w+)\]`)
)

// plain leaves out what upstream takes in the order of a map: which pod of several is at
// fault, which of two autoscalers is named first.
func plain(s string) string {
	s = strings.Replace(s, "(combined from similar events): ", "", 1) // client-go's words
	s = anyPod.ReplaceAllString(s, "Pod web-N")
	return anyPair.ReplaceAllStringFunc(s, func(pair string) string {
		two := strings.Fields(strings.Trim(pair, "[]"))
		slices.Sort(two)
		return fmt.Sprint(two)
	})
}

// undefined leaves out the average over no replicas, which upstream gets of a division by
// zero: here it is the value itself.
func undefined(theirs, ours *autoscalingv2.HorizontalPodAutoscalerStatus) {
	average := func(m *autoscalingv2.MetricStatus) **resource.Quantity {
		switch {
		case m.Object != nil:
			return &m.Object.Current.AverageValue
		case m.External != nil:
			return &m.External.Current.AverageValue
		}
		return new(*resource.Quantity)
	}
	for i := range theirs.CurrentMetrics {
		a := average(&theirs.CurrentMetrics[i])
		if *a != nil && (*a).Sign() < 0 && i < len(ours.CurrentMetrics) {
			*a = nil
			*average(&ours.CurrentMetrics[i]) = nil
		}
	}
}
