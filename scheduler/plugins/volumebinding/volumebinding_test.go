package volumebinding

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/clock"
)

// TestWaitEndsWhenTheProvisionerGivesUp: a claim whose chosen node is taken back will not be bound
// for this pod; one that the cache does not show yet may be.
func TestWaitEndsWhenTheProvisionerGivesUp(t *testing.T) {
	for name, tt := range map[string]struct {
		after []map[string]string // annotations of the claim, second by second
		bound bool
		err   string
		took  time.Duration
	}{
		"taken back":          {after: []map[string]string{{}, {volume.AnnSelectedNode: "n"}, {}}, err: `provisioning failed for PVC "c"`, took: 3 * time.Second},
		"another node":        {after: []map[string]string{{volume.AnnSelectedNode: "n"}, {volume.AnnSelectedNode: "m"}}, err: `provisioning failed for PVC "c"`, took: 2 * time.Second},
		"bound in the end":    {after: []map[string]string{{}, {volume.AnnSelectedNode: "n"}, {volume.AnnSelectedNode: "n", volume.AnnBindCompleted: "yes"}}, bound: true, took: 3 * time.Second},
		"nobody provisions":   {after: []map[string]string{{volume.AnnSelectedNode: "n"}}, err: "not bound within", took: bindTimeout},
		"not shown to be set": {after: []map[string]string{{}}, err: "not bound within", took: bindTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "1"}}
				client := fake.NewClientset(claim)
				shared := informers.NewSharedInformerFactory(client, 0)
				pl := New(client, shared, clock.RealClock{})
				shared.Core().V1().PersistentVolumeClaims().Informer()
				ctx, cancel := context.WithCancel(t.Context())
				defer shared.Shutdown()
				defer cancel()
				shared.StartWithContext(ctx)
				shared.WaitForCacheSync(ctx.Done())
				begin, done := time.Now(), make(chan error, 1)
				go func() {
					done <- pl.wait(ctx, []*corev1.PersistentVolumeClaim{claim}, []*corev1.PersistentVolumeClaim{claim}, "n")
				}()
				for _, annotations := range tt.after {
					time.Sleep(time.Second - time.Millisecond)
					next := claim.DeepCopy()
					next.Annotations = annotations
					if annotations[volume.AnnBindCompleted] != "" {
						next.Spec.VolumeName = "pv"
					}
					if _, err := client.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), next, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Millisecond)
				}
				err := <-done
				if tt.bound != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%v, want %q", err, tt.err)
				}
				if took := time.Since(begin); took < tt.took-poll || took > tt.took+poll {
					t.Errorf("after %s, want %s", took, tt.took)
				}
			})
		})
	}
}
