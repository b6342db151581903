package apiserver_test

import (
	"encoding/json"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

func TestComponentStatuses(t *testing.T) {
	s := servertest.Full(t)
	k, err := kubernetes.NewForConfig(s.Admin())
	if err != nil {
		t.Fatal(err)
	}
	for name, renewed := range map[string]time.Duration{"kube-scheduler": 0, "kube-controller-manager": -time.Minute} {
		at := metav1.NewMicroTime(time.Now().Add(renewed))
		if _, err := k.CoordinationV1().Leases("kube-system").Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("n"), LeaseDurationSeconds: ptr.To[int32](30), RenewTime: &at, AcquireTime: &at}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	l, err := k.CoreV1().ComponentStatuses().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]corev1.ConditionStatus{"scheduler": corev1.ConditionTrue, "controller-manager": corev1.ConditionFalse, "etcd-0": corev1.ConditionTrue}
	for _, c := range l.Items {
		if len(c.Conditions) != 1 || c.Conditions[0].Type != corev1.ComponentHealthy || c.Conditions[0].Status != want[c.Name] {
			t.Errorf("%s: %+v, want %s", c.Name, c.Conditions, want[c.Name])
		}
		delete(want, c.Name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	if l, err := k.CoreV1().ComponentStatuses().List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=scheduler"}); err != nil || len(l.Items) != 1 {
		t.Errorf("by name: %v, %v", l, err)
	}
	if c, err := k.CoreV1().ComponentStatuses().Get(t.Context(), "etcd-0", metav1.GetOptions{}); err != nil || c.Name != "etcd-0" || c.Conditions[0].Message != "ok" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := k.CoreV1().ComponentStatuses().Get(t.Context(), "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v, want 404", err)
	}
	raw, err := k.CoreV1().RESTClient().Get().Resource("componentstatuses").SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(raw, &table); err != nil || table.Kind != "Table" || len(table.Rows) != 3 || table.Rows[1].Cells[1] != "Unhealthy" {
		t.Errorf("%v: %s", err, raw)
	}
	if err := k.CoreV1().RESTClient().Delete().Resource("componentstatuses").Name("etcd-0").Do(t.Context()).Error(); !apierrors.IsMethodNotSupported(err) && !apierrors.IsNotFound(err) {
		t.Errorf("%v, want 405", err)
	}
}
