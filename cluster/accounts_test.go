package cluster

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestAccountTokens(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	client := fake.NewClientset()
	made, asked := false, 0
	var refuse error
	client.PrependReactor("create", "serviceaccounts", func(a k8stesting.Action) (bool, runtime.Object, error) {
		create := a.(k8stesting.CreateAction)
		switch {
		case a.GetSubresource() == "":
			made = true
			return true, create.GetObject(), nil
		case refuse != nil:
			return true, nil, refuse
		case !made:
			return true, nil, apierrors.NewNotFound(corev1.Resource("serviceaccounts"), "job-controller")
		}
		asked++
		return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
			Token: string(rune('a' + asked - 1)), ExpirationTimestamp: metav1.NewTime(clock.Now().Add(tokenLife)),
		}}, nil
	})
	s := &accountTokens{account: "job-controller", client: client, clock: clock, log: slog.New(slog.DiscardHandler)}
	want := func(when, token string) {
		t.Helper()
		got, err := s.token(t.Context())
		if err != nil || got != token {
			t.Errorf("%s: token %q, %v; want %q", when, got, err, token)
		}
	}
	want("at first, which makes the account", "a")
	clock.Step(tokenLife * 3 / 4)
	want("while it is good", "a")
	clock.Step(tokenLife / 10)
	want("when it is old", "b")
	s.forget("a")
	want("another was forgotten", "b")
	s.forget("b")
	want("it was refused", "c")
	clock.Step(tokenLife * 9 / 10)
	refuse = errors.New("away")
	want("the API server is away", "c")
	s.forget("c")
	if _, err := s.token(t.Context()); err == nil {
		t.Error("without any token there is no error")
	}
}
