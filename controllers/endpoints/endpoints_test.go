package endpoints

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
)

func endpoints(name string, labels map[string]string) *corev1.Endpoints { //nolint:staticcheck // deprecated, and still served
	return &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: labels}} //nolint:staticcheck
}

// Endpoints without a Service live on if others made them, whatever is done to them, and
// go if this controller did.
func TestWithoutService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := controllertest.New(t, endpoints("others", nil), endpoints("left-over", map[string]string{managedByLabel: managedBy}),
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "gone"}}, endpoints("gone", nil))
		c, err := New(e.Config)
		if err != nil {
			t.Fatal(err)
		}
		e.Start(c)
		client := e.Client.CoreV1().Endpoints("ns")
		others, err := client.Get(t.Context(), "others", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		others.Labels = map[string]string{"a": "b"}
		if _, err := client.Update(t.Context(), others, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := e.Client.CoreV1().Services("ns").Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		list, err := client.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		left := map[string]bool{}
		for _, x := range list.Items {
			left[x.Name] = true
		}
		if got := slices.Sorted(maps.Keys(left)); !slices.Equal(got, []string{"others"}) {
			t.Errorf("left %v, want others alone", got)
		}
	})
}
