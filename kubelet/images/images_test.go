package images

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/internal/fakecri"
)

func setup(t *testing.T) (*fakecri.Server, *Puller, *testclock.FakeClock) {
	s := fakecri.Start(t)
	c, err := cri.New(cri.Config{RuntimeEndpoint: s.Endpoint()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	clk := testclock.NewFakeClock(time.Now())
	return s, New(Config{CRI: c, Clock: clk}), clk
}

func TestPolicies(t *testing.T) {
	s, p, _ := setup(t)
	s.AddImage("here:1", nil, "")
	s.Remote["remote:latest"] = true
	for _, tc := range []struct {
		image  string
		policy corev1.PullPolicy
		reason string
		events string
	}{
		{"here:1", corev1.PullIfNotPresent, "", "Pulled"},
		{"here:1", corev1.PullNever, "", "Pulled"},
		{"gone:1", corev1.PullNever, "ErrImageNeverPull", "ErrImageNeverPull"},
		{"remote", corev1.PullIfNotPresent, "", "Pulling,Pulled"},
		{"remote", corev1.PullAlways, "", "Pulling,Pulled"},
		{"here:1", corev1.PullAlways, "ErrImagePull", "Pulling,Failed"},
		{"UPPER", corev1.PullAlways, "InvalidImageName", "InspectFailed"},
	} {
		var events []string
		_, err := p.Ensure(context.Background(), Request{Pod: "u", Image: tc.image, Policy: tc.policy, Event: func(_, r, _ string) { events = append(events, r) }})
		reason := ""
		if err != nil {
			reason = err.Reason
		}
		if reason != tc.reason || strings.Join(events, ",") != tc.events {
			t.Errorf("%s %s: reason %q, events %v", tc.image, tc.policy, reason, events)
		}
	}
}

// What was asked and how long pulls took is counted, waiting included.
func TestMetrics(t *testing.T) {
	s, p, _ := setup(t)
	s.AddImage("here:1", nil, "")
	s.Remote["remote:latest"] = true
	for _, r := range []Request{
		{Image: "here:1", Policy: corev1.PullIfNotPresent}, {Image: "here:1", Policy: corev1.PullIfNotPresent}, {Image: "gone:1", Policy: corev1.PullNever},
		{Image: "UPPER", Policy: corev1.PullNever}, {Image: "remote", Policy: corev1.PullIfNotPresent}, {Image: "gone:1", Policy: corev1.PullAlways},
	} {
		r.Event = func(string, string, string) {}
		_, _ = p.Ensure(context.Background(), r)
	}
	p.metrics.pulled(11<<20, 7*time.Second)
	p.metrics.pulled(11<<20, time.Hour+time.Second)
	p.metrics.pulled(11<<20, 5*time.Second)
	var b strings.Builder
	p.WriteMetrics(&b)
	for _, want := range []string{
		`kubelet_image_manager_ensure_image_requests_total{present_locally="true",pull_policy="ifnotpresent",pull_required="false"} 2`,
		`kubelet_image_manager_ensure_image_requests_total{present_locally="false",pull_policy="never",pull_required="unknown"} 1`,
		`kubelet_image_manager_ensure_image_requests_total{present_locally="unknown",pull_policy="never",pull_required="unknown"} 1`,
		`kubelet_image_manager_ensure_image_requests_total{present_locally="false",pull_policy="ifnotpresent",pull_required="true"} 1`,
		`kubelet_image_manager_ensure_image_requests_total{present_locally="unknown",pull_policy="always",pull_required="true"} 1`,
		`kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes="10MB-100MB",le="1"} 0`,
		`kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes="10MB-100MB",le="5"} 1`,
		`kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes="10MB-100MB",le="10"} 2`,
		`kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes="10MB-100MB",le="3600"} 2`,
		`kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes="10MB-100MB",le="+Inf"} 3`,
		`kubelet_image_pull_duration_seconds_sum{image_size_in_bytes="10MB-100MB"} 3613`,
		`kubelet_image_pull_duration_seconds_count{image_size_in_bytes="10MB-100MB"} 3`,
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("without %s:\n%s", want, b.String())
		}
	}
	if n := strings.Count(b.String(), "_count{"); n != 2 { // the pull that came about is of another size
		t.Errorf("%d sizes:\n%s", n, b.String())
	}
	for bytes, want := range map[uint64]string{0: "N/A", 1: "0-10MB", 10 << 20: "0-10MB", 10<<20 + 1: "10MB-100MB", 2 << 30: "1GB-5GB", 101 << 30: "GT100GB"} {
		if got := sizeLabel(bytes); got != want {
			t.Errorf("%d bytes: %s, want %s", bytes, got, want)
		}
	}
}

func TestBackOff(t *testing.T) {
	s, p, clk := setup(t)
	get := func() *Error {
		_, err := p.Ensure(context.Background(), Request{Pod: "u", Image: "a:1", Policy: corev1.PullIfNotPresent, Event: func(_, _, _ string) {}})
		return err
	}
	for _, delay := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		if err := get(); err == nil || err.Reason != "ErrImagePull" {
			t.Fatalf("want a failed pull, got %v", err)
		}
		clk.Step(delay*time.Second - 1)
		if err := get(); err == nil || err.Reason != "ImagePullBackOff" || !strings.Contains(err.Message, "ErrImagePull") {
			t.Fatalf("after %ds: %v", delay, err)
		}
		clk.Step(1)
	}
	s.Set(func() { s.Remote["a:1"] = true })
	if err := get(); err != nil {
		t.Fatal(err)
	}
	if len(p.backOff) != 0 {
		t.Error("success is not forgotten")
	}
}

func TestCredentials(t *testing.T) {
	auth := base64.StdEncoding.EncodeToString([]byte("u:p"))
	secret := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{
		corev1.DockerConfigJsonKey: []byte(`{"auths":{"https://reg.example.com/v1/":{"auth":"` + auth + `"},"*.example.com/team":{"username":"t","password":"q"},"other":{"username":"x"}}}`),
	}}
	for repo, want := range map[string]string{
		"reg.example.com/app": "u", "reg.example.com/team/app": "u,t", "a.example.com/team/x": "t", "docker.io/library/nginx": "", "reg.example.com:5000/app": "",
	} {
		var got []string
		creds, err := credentials(repo, []*corev1.Secret{secret}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range creds {
			got = append(got, c.auth.Username)
		}
		if strings.Join(got, ",") != want {
			t.Errorf("%s: %v, want %s", repo, got, want)
		}
	}
}

func TestTriesAllCredentials(t *testing.T) {
	s, p, _ := setup(t)
	s.Remote["reg.example.com/a:1"] = true
	s.Auth = func(_ string, a *runtimeapi.AuthConfig) error {
		if a.GetUsername() != "good" {
			return errors.New("denied")
		}
		return nil
	}
	secret := func(user string) *corev1.Secret {
		return &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"reg.example.com":{"username":"` + user + `"}}}`)}}
	}
	req := Request{Image: "reg.example.com/a:1", Secrets: []*corev1.Secret{secret("bad"), secret("good")}, Event: func(_, _, _ string) {}}
	if _, err := p.Ensure(context.Background(), req); err != nil {
		t.Fatal(err)
	}
}

func FuzzFits(f *testing.F) {
	f.Add("https://*.example.com:5000/v1/", "a.example.com:5000/x")
	f.Fuzz(func(t *testing.T, k, r string) { fits(keyOf(k), r) })
}
