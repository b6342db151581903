package authn_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/apiserver/authn"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

func TestUsesOfTokensAreNoted(t *testing.T) {
	s := servertest.Full(t)
	k, err := kubernetes.NewForConfig(s.Admin())
	if err != nil {
		t.Fatal(err)
	}
	secrets := k.CoreV1().Secrets("default")
	made, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token", Labels: map[string]string{"a": "b"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m := authn.NewUseMarker(func() seams.Stores { return s.Registry() }, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	m.Mark("default", "gone", "2026-01-01") // harms nobody
	for _, day := range []string{"2026-01-01", "2026-01-02"} {
		m.Mark("default", "token", day)
		err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			got, err := secrets.Get(ctx, "token", metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			if got.UID != made.UID || got.Labels["a"] != "b" {
				t.Fatalf("secret %+v", got)
			}
			return got.Labels["kubernetes.io/legacy-token-last-used"] == day, nil
		})
		if err != nil {
			t.Fatalf("the use on %s was not noted: %v", day, err)
		}
	}
}
