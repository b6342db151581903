package probes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// script is a container whose probes answer as told.
type script struct {
	mu      sync.Mutex
	ok      map[*corev1.Probe]bool
	err     error
	runs    map[*corev1.Probe][]time.Duration // since the start
	begun   time.Time
	changes int
	events  []string
}

func (s *script) set(p *corev1.Probe, ok bool) {
	s.mu.Lock()
	s.ok[p] = ok
	s.mu.Unlock()
}

// ran is when a probe ran; told are the events.
func (s *script) ran(p *corev1.Probe) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Duration(nil), s.runs[p]...)
}

func (s *script) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.events...)
}

func start(t *testing.T, c *corev1.Container, target Target) (*Manager, *script, *corev1.Pod) {
	s := &script{ok: map[*corev1.Probe]bool{}, runs: map[*corev1.Probe][]time.Duration{}, begun: time.Now()}
	m := New(Config{
		Run: func(_ context.Context, _ *corev1.Pod, _ string, _ Target, p *corev1.Probe) (bool, string, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.runs[p] = append(s.runs[p], time.Since(s.begun))
			return s.ok[p], "output", s.err
		},
		Changed: func(types.UID) { s.mu.Lock(); s.changes++; s.mu.Unlock() },
		Unhealthy: func(_ *corev1.Pod, _ *corev1.Container, msg string) {
			s.mu.Lock()
			s.events = append(s.events, msg)
			s.mu.Unlock()
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { m.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	target.Container, target.StartedAt = c, time.Now()
	if target.ID == "" {
		target.ID = "id"
	}
	m.Set(pod, "1.2.3.4", []Target{target}, false)
	return m, s, pod
}

func probeOf(period, delay, failure, success int32) *corev1.Probe {
	return &corev1.Probe{PeriodSeconds: period, InitialDelaySeconds: delay, TimeoutSeconds: 1, FailureThreshold: failure, SuccessThreshold: success}
}

func TestTimingAndThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probeOf(10, 5, 3, 2)
		m, s, _ := start(t, &corev1.Container{Name: "c", ReadinessProbe: p}, Target{})
		check := func(after time.Duration, want Result) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := m.Result("id", Readiness); got != want {
				t.Errorf("at %v: %v, want %v", time.Since(s.begun), got, want)
			}
		}
		s.set(p, true)
		check(0, Failure)              // not ready before it was probed
		check(6*time.Second, Failure)  // 5 s: first success of two
		check(10*time.Second, Success) // 15 s
		s.set(p, false)
		check(10*time.Second, Success) // 25 s: first failure of three
		check(10*time.Second, Success)
		check(10*time.Second, Failure) // 45 s
		s.mu.Lock()
		s.err = errors.New("cannot probe")
		s.mu.Unlock()
		s.set(p, true)
		check(30*time.Second, Failure) // errors count for nothing
		want := []time.Duration{5 * time.Second, 15 * time.Second, 25 * time.Second}
		for i, w := range want {
			if s.ran(p)[i] != w {
				t.Errorf("run %d at %v, want %v", i, s.ran(p)[i], w)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.changes != 2 {
			t.Errorf("%d changes were told", s.changes)
		}
	})
}

func TestStartupComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		su, live, ready := probeOf(2, 0, 5, 1), probeOf(10, 0, 1, 1), probeOf(10, 0, 1, 1)
		m, s, _ := start(t, &corev1.Container{Name: "c", StartupProbe: su, LivenessProbe: live, ReadinessProbe: ready}, Target{})
		s.set(live, true)
		s.set(ready, true)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if len(s.ran(live))+len(s.ran(ready)) != 0 || m.Result("id", Startup) != Unknown {
			t.Error("liveness or readiness ran before the container was started")
		}
		s.set(su, true)
		time.Sleep(2 * time.Second) // 6 s: startup succeeds, the others follow at once
		synctest.Wait()
		if m.Result("id", Startup) != Success || m.Result("id", Readiness) != Success || m.Result("id", Liveness) != Success {
			t.Error("not started")
		}
		n := len(s.ran(su))
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(s.ran(su)) != n {
			t.Error("the startup probe goes on after success")
		}
	})
}

func TestEarlyTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probeOf(10, 0, 1, 1)
		m, s, _ := start(t, &corev1.Container{Name: "c", ReadinessProbe: p}, Target{})
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if len(s.told()) != 0 {
			t.Errorf("early failures were told: %v", s.told())
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		ms := time.Millisecond
		want := []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 10 * time.Second, 20 * time.Second}
		if fmt.Sprint(s.ran(p)) != fmt.Sprint(want) {
			t.Errorf("runs at %v, want %v", s.ran(p), want)
		}
		_ = m
	})
	synctest.Test(t, func(t *testing.T) {
		p := probeOf(10, 0, 1, 1)
		m, s, _ := start(t, &corev1.Container{Name: "c", ReadinessProbe: p}, Target{})
		time.Sleep(50 * time.Millisecond)
		s.set(p, true)
		time.Sleep(60 * time.Millisecond)
		synctest.Wait()
		if m.Result("id", Readiness) != Success {
			t.Error("a container that is up after 100 ms is not ready")
		}
	})
}

func TestFailedLivenessHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := probeOf(1, 0, 2, 1)
		c := &corev1.Container{Name: "c", LivenessProbe: live}
		m, s, pod := start(t, c, Target{})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if m.Result("id", Liveness) != Failure || len(s.ran(live)) != 2 {
			t.Errorf("%v after %d runs", m.Result("id", Liveness), len(s.ran(live)))
		}
		if s.told()[0] != "Liveness probe failed: output" {
			t.Errorf("events %v", s.told())
		}
		// The next run of the container begins anew.
		m.Set(pod, "", []Target{{ID: "id2", Container: c, StartedAt: time.Now()}}, false)
		if m.Result("id2", Liveness) != Success || m.Result("id", Liveness) != Unknown {
			t.Error("results are not those of the new container")
		}
		m.Remove("u")
		n := len(s.ran(live))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(s.ran(live)) > n+1 || len(m.byID) != 0 || len(m.queue) != 0 {
			t.Error("probes go on after removal")
		}
	})
}

func TestTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		su, ready := probeOf(1, 0, 1, 1), probeOf(10, 0, 3, 1)
		m, s, _ := start(t, &corev1.Container{Name: "c", StartupProbe: su, ReadinessProbe: ready}, Target{Started: true, Ready: true})
		if m.Result("id", Startup) != Success || m.Result("id", Readiness) != Success {
			t.Error("what the API said is forgotten")
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if len(s.ran(su)) != 0 || len(s.ran(ready)) != 1 {
			t.Errorf("runs %v %v", s.ran(su), s.ran(ready))
		}
	})
}

func TestRunners(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Test") != "1" || r.UserAgent() != UserAgent {
			w.WriteHeader(418)
		}
	})
	mux.HandleFunc("/bad", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) })
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/bad", http.StatusFound) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://example.invalid/", http.StatusFound)
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	u, _ := url.Parse(srv.URL)
	port, _ := strconv.Atoi(u.Port())

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gs := grpc.NewServer()
	hs := grpchealth.NewServer()
	hs.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(gs, hs)
	go gs.Serve(l)
	defer gs.Stop()
	gport := int32(l.Addr().(*net.TCPAddr).Port)

	c := &corev1.Container{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}}
	run := Runner(func(_ context.Context, _ string, cmd []string, _ time.Duration) ([]byte, int32, error) {
		code, _ := strconv.Atoi(cmd[0])
		return []byte("said"), int32(code), nil
	})
	get := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("web"), HTTPHeaders: []corev1.HTTPHeader{{Name: "X-Test", Value: "1"}}}}
	}
	for name, tc := range map[string]struct {
		h      corev1.ProbeHandler
		ok     bool
		output string
	}{
		"http":           {get("/ok"), true, ""},
		"http 500":       {get("/bad"), false, "HTTP probe failed with statuscode: 500"},
		"redirect here":  {get("/here"), false, "HTTP probe failed with statuscode: 500"},
		"redirect away":  {get("/away"), true, ""},
		"tcp":            {corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)}}, true, ""},
		"tcp closed":     {corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(1)}}, false, ""},
		"exec":           {corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"0"}}}, true, ""},
		"exec fails":     {corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"1"}}}, false, "said"},
		"grpc":           {corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: gport}}, true, ""},
		"grpc service":   {corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: gport, Service: ptr.To("down")}}, false, `service unhealthy (responded with "NOT_SERVING")`},
		"grpc not there": {corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 1}}, false, ""},
	} {
		within := time.Minute
		if name == "grpc not there" { // tried until then
			within = time.Second
		}
		ctx, cancel := context.WithTimeout(context.Background(), within)
		ok, out, err := run(ctx, &corev1.Pod{}, "127.0.0.1", Target{ID: "x", Container: c}, &corev1.Probe{ProbeHandler: tc.h, TimeoutSeconds: int32(within.Seconds())})
		cancel()
		if err != nil || ok != tc.ok || tc.output != "" && out != tc.output {
			t.Errorf("%s: %v %q %v", name, ok, out, err)
		}
	}
}
