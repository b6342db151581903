package volumes

import (
	"context"
	"fmt"
	"sync"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// tokens asks for service account tokens bound to pods and keeps them until 80 %
// of their life, and at most a day, is over.
type tokens struct {
	client kubernetes.Interface
	clock  clock.PassiveClock

	mu    sync.Mutex
	cache map[types.UID]map[string]token
}

type token struct {
	value            string
	refresh, expires time.Time
}

func newTokens(client kubernetes.Interface, clk clock.PassiveClock) *tokens {
	return &tokens{client: client, clock: clk, cache: map[types.UID]map[string]token{}}
}

func (t *tokens) forget(uid types.UID) {
	t.mu.Lock()
	delete(t.cache, uid)
	t.mu.Unlock()
}

func (t *tokens) get(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) (string, time.Time, error) {
	if t.client == nil {
		return "", time.Time{}, fmt.Errorf("a kubelet without API server cannot get service account tokens")
	}
	seconds := int64(3600)
	if p.ExpirationSeconds != nil {
		seconds = *p.ExpirationSeconds
	}
	key := fmt.Sprintf("%s/%s/%d", pod.Spec.ServiceAccountName, p.Audience, seconds)
	now := t.clock.Now()
	t.mu.Lock()
	have, ok := t.cache[pod.UID][key]
	t.mu.Unlock()
	if ok && now.Before(have.refresh) {
		return have.value, have.refresh, nil
	}
	req := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if p.Audience != "" {
		req.Spec.Audiences = []string{p.Audience}
	}
	resp, err := t.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, req, metav1.CreateOptions{})
	if err != nil {
		if ok && now.Before(have.expires) {
			// Good for a while still: a control plane that is away must not break pods.
			return have.value, now.Add(time.Minute), nil
		}
		return "", time.Time{}, fmt.Errorf("failed to fetch token: %w", err)
	}
	life := time.Duration(seconds) * time.Second
	if s := resp.Spec.ExpirationSeconds; s != nil && *s > 0 {
		life = time.Duration(*s) * time.Second
	}
	next := token{value: resp.Status.Token, refresh: now.Add(min(life*8/10, 24*time.Hour)), expires: now.Add(life)}
	t.mu.Lock()
	if t.cache[pod.UID] == nil {
		t.cache[pod.UID] = map[string]token{}
	}
	t.cache[pod.UID][key] = next
	t.mu.Unlock()
	return next.value, next.refresh, nil
}
