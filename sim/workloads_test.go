package sim

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func names(t *testing.T, c *Cluster, selector string) []string {
	t.Helper()
	pods, err := c.Admin.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			all = append(all, p.Name+" on "+p.Spec.NodeName+" "+p.Spec.Containers[0].Image)
		}
	}
	slices.Sort(all)
	return all
}

func TestDaemonSet(t *testing.T) {
	c := start(t, 3)
	ctx := t.Context()
	l := map[string]string{"app": "agent"}
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: l}, Template: template(l)}}
	client := c.Admin.AppsV1().DaemonSets("default")
	if _, err := client.Create(ctx, ds, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	done := func() string {
		ds, err := client.Get(ctx, "agent", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if st := ds.Status; st.ObservedGeneration != ds.Generation || st.DesiredNumberScheduled != 3 || st.NumberAvailable != 3 || st.UpdatedNumberScheduled != 3 {
			return fmt.Sprintf("%+v", st)
		}
		return ""
	}
	eventually(t, "one on every node", done)
	nodes := map[string]bool{}
	pods, err := c.Admin.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		nodes[p.Spec.NodeName] = true
	}
	if len(nodes) != 3 || len(pods.Items) != 3 {
		t.Errorf("%d pods on nodes %v", len(pods.Items), nodes)
	}
	retry(t, func() error {
		ds, err := client.Get(ctx, "agent", metav1.GetOptions{})
		if err != nil {
			return err
		}
		ds.Spec.Template.Spec.Containers[0].Image = "v2"
		_, err = client.Update(ctx, ds, metav1.UpdateOptions{})
		return err
	})
	eventually(t, "updated", done)
	revisions, err := c.Admin.AppsV1().ControllerRevisions("default").List(ctx, metav1.ListOptions{})
	if err != nil || len(revisions.Items) != 2 {
		t.Errorf("%d revisions, %v", len(revisions.Items), err)
	}
	if err := client.Delete(ctx, "agent", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "gone", func() string {
		if all := names(t, c, "app=agent"); len(all) > 0 {
			return fmt.Sprint(all)
		}
		return ""
	})
}

func TestStatefulSet(t *testing.T) {
	c := start(t, 2)
	ctx := t.Context()
	l := map[string]string{"app": "db"}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), ServiceName: "db",
		Selector: &metav1.LabelSelector{MatchLabels: l}, Template: template(l)}}
	client := c.Admin.AppsV1().StatefulSets("default")
	if _, err := client.Create(ctx, set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	done := func(n int32) func() string {
		return func() string {
			s, err := client.Get(ctx, "db", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if st := s.Status; st.ObservedGeneration != s.Generation || st.Replicas != n || st.AvailableReplicas != n || st.UpdatedReplicas != n || st.CurrentRevision != st.UpdateRevision {
				return fmt.Sprintf("%+v", st)
			}
			return ""
		}
	}
	eventually(t, "three", done(3))
	pods, err := c.Admin.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range pods.Items {
		if p.Name != fmt.Sprintf("db-%d", i) || p.Spec.Hostname != p.Name || p.Spec.Subdomain != "db" || p.Labels[appsv1.StatefulSetPodNameLabel] != p.Name {
			t.Errorf("pod %s: hostname %s, subdomain %s, labels %v", p.Name, p.Spec.Hostname, p.Spec.Subdomain, p.Labels)
		}
		if i > 0 && p.CreationTimestamp.Before(&pods.Items[i-1].CreationTimestamp) {
			t.Errorf("%s came before %s", p.Name, pods.Items[i-1].Name)
		}
	}
	update := func(change func(*appsv1.StatefulSet)) {
		t.Helper()
		retry(t, func() error {
			s, err := client.Get(ctx, "db", metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(s)
			_, err = client.Update(ctx, s, metav1.UpdateOptions{})
			return err
		})
	}
	update(func(s *appsv1.StatefulSet) {
		s.Spec.Template.Spec.Containers[0].Image = "v2"
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](2)}
	})
	eventually(t, "canary", func() string {
		all := names(t, c, "app=db")
		n := 0
		for _, s := range all {
			if s[:4] == "db-2" && s[len(s)-2:] == "v2" {
				n++
			} else if s[len(s)-2:] == "v2" {
				t.Fatalf("below the partition: %v", all)
			}
		}
		if n != 1 || len(all) != 3 {
			return fmt.Sprint(all)
		}
		return ""
	})
	update(func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = ptr.To[int32](0) })
	eventually(t, "all updated", done(3))
	update(func(s *appsv1.StatefulSet) { s.Spec.Replicas = ptr.To[int32](1) })
	eventually(t, "scaled down", done(1))
	if all := names(t, c, "app=db"); len(all) != 1 || all[0][:4] != "db-0" {
		t.Errorf("left %v", all)
	}
}
