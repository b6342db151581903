package admission

import (
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

func quotaOf(name string, hard, used corev1.ResourceList, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: objectMeta("ns", name)}
	q.Spec.Hard, q.Spec.Scopes = hard, scopes
	q.Status.Hard, q.Status.Used = hard, used
	return q
}

func TestResourceQuota(t *testing.T) {
	c := lookuptest.New(t,
		quotaOf("compute", list("pods", "2", "requests.cpu", "1"), list("pods", "0", "requests.cpu", "0")),
		quotaOf("short", list("pods", "0"), list("pods", "0"), corev1.ResourceQuotaScopeTerminating),
		quotaOf("others", list("services.nodeports", "1", "count/deployments.apps", "1", "secrets", "0"), list("services.nodeports", "0", "count/deployments.apps", "0", "secrets", "0")),
		quotaOf("fresh", list("configmaps", "5"), nil),
	)
	p := newResourceQuota(c, clock.RealClock{})
	cpu := func(s string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = list("cpu", s) }
	}
	create := func(change func(*corev1.Pod)) error {
		return admit(t, p, write(seams.Create, core("pods"), podIn("ns", change), nil))
	}
	used := func(name, resource string) string {
		q, err := lookup.Fresh[*corev1.ResourceQuota](t.Context(), c, resourceQuotas, "ns", name)
		if err != nil {
			t.Fatal(err)
		}
		v := q.Status.Used[corev1.ResourceName(resource)]
		return v.String()
	}
	if err := create(cpu("600m")); err != nil {
		t.Fatal(err)
	}
	if used("compute", "pods") != "1" || used("compute", "requests.cpu") != "600m" {
		t.Errorf("used %s pods, %s CPU", used("compute", "pods"), used("compute", "requests.cpu"))
	}
	wantForbidden(t, create(cpu("500m")), `pods "p" is forbidden: exceeded quota: compute, requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1`)
	wantForbidden(t, create(nil), "failed quota: compute: must specify requests.cpu for: c")
	wantForbidden(t, create(func(p *corev1.Pod) { cpu("100m")(p); p.Spec.ActiveDeadlineSeconds = ptr.To[int64](5) }), "exceeded quota: short, requested: pods=1, used: pods=0, limited: pods=0")
	if used("compute", "pods") != "1" {
		t.Error("a write that one quota refuses is charged to another")
	}
	dry := write(seams.Create, core("pods"), podIn("ns", cpu("100m")), nil)
	dry.DryRun = true
	if err := admit(t, p, dry); err != nil || used("compute", "pods") != "1" {
		t.Errorf("dry run: %v, %s pods", err, used("compute", "pods"))
	}
	wantForbidden(t, admit(t, p, write(seams.Create, core("secrets"), &corev1.Secret{ObjectMeta: objectMeta("ns", "s")}, nil)), "exceeded quota: others, requested: secrets=1")
	wantForbidden(t, admit(t, p, write(seams.Create, core("configmaps"), &corev1.ConfigMap{ObjectMeta: objectMeta("ns", "c")}, nil)), "status unknown for quota: fresh, resources: configmaps")
	svc := func(ports int, kind corev1.ServiceType) *corev1.Service {
		return &corev1.Service{ObjectMeta: objectMeta("ns", "s"), Spec: corev1.ServiceSpec{Type: kind, Ports: make([]corev1.ServicePort, ports)}}
	}
	if err := admit(t, p, write(seams.Update, core("services"), svc(1, corev1.ServiceTypeNodePort), svc(1, corev1.ServiceTypeClusterIP))); err != nil || used("others", "services.nodeports") != "1" {
		t.Errorf("service gets a port: %v, %s", err, used("others", "services.nodeports"))
	}
	wantForbidden(t, admit(t, p, write(seams.Update, core("services"), svc(2, corev1.ServiceTypeNodePort), svc(1, corev1.ServiceTypeNodePort))), "exceeded quota: others, requested: services.nodeports=1")
	if err := admit(t, p, write(seams.Update, core("services"), svc(1, corev1.ServiceTypeNodePort), svc(1, corev1.ServiceTypeNodePort))); err != nil {
		t.Error(err)
	}
}

// TestQuotaRace: two API servers, many writers, and never one too many.
func TestQuotaRace(t *testing.T) {
	c := lookuptest.New(t, quotaOf("q", list("pods", "7"), list("pods", "0")))
	servers := []*resourceQuota{newResourceQuota(c, clock.RealClock{}), newResourceQuota(c, clock.RealClock{})}
	var wg sync.WaitGroup
	var mu sync.Mutex
	admitted := 0
	for i := range 20 {
		wg.Go(func() {
			err := servers[i%2].Validate(t.Context(), write(seams.Create, core("pods"), podIn("ns", func(p *corev1.Pod) { p.Name = fmt.Sprint(i) }), nil))
			if err == nil {
				mu.Lock()
				admitted++
				mu.Unlock()
			} else if !apierrors.IsForbidden(err) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if admitted != 7 {
		t.Errorf("%d pods admitted under a quota of 7", admitted)
	}
}
