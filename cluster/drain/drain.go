// Package drain empties a node: no new pods come, those that are there are evicted, as
// their disruption budgets allow it.
//
// Owns: the order of cordon, evictions and waiting. Must not: take the node itself away,
// nor touch pods that belong to the node (DaemonSets', static ones).
package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// Config of a drain.
type Config struct {
	Client kubernetes.Interface
	Node   string
	// Force evicts pods that nothing makes again elsewhere, too.
	Force bool
	// Progress gets a line for each step.
	Progress io.Writer
	// RetryEvery is how often refused evictions are tried again; 0: each second.
	RetryEvery time.Duration
}

// Run returns when no pod is left that could run elsewhere. When ctx ends before that the
// error says what is left and why; the node stays cordoned then.
func Run(ctx context.Context, c Config) error {
	if c.RetryEvery == 0 {
		c.RetryEvery = time.Second
	}
	d := drainer{Config: c, told: map[types.UID]string{}}
	left, _, err := d.pods(ctx)
	if err != nil {
		return err
	}
	if err := d.refuseBare(left); err != nil {
		return err
	}
	if err := d.cordon(ctx); err != nil {
		return err
	}
	for {
		left, version, err := d.pods(ctx)
		if err == nil && len(left) == 0 {
			return nil
		}
		if err == nil {
			err = d.refuseBare(left)
		}
		if err == nil {
			err = d.evict(ctx, left)
		}
		if err == nil {
			err = d.wait(ctx, version)
		}
		if ctx.Err() != nil {
			return d.unfinished(left)
		}
		if err != nil {
			return err
		}
	}
}

type drainer struct {
	Config
	told map[types.UID]string // what was last said of a pod
}

func (d *drainer) selector() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", d.Node).String()}
}

// pods are those that must leave.
func (d *drainer) pods(ctx context.Context) ([]corev1.Pod, string, error) {
	list, err := d.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, d.selector())
	if err != nil {
		return nil, "", fmt.Errorf("list pods of node %s: %w", d.Node, err)
	}
	var out []corev1.Pod
	for _, p := range list.Items {
		if leaves(&p) {
			out = append(out, p)
		}
	}
	return out, list.ResourceVersion, nil
}

// leaves tells whether a pod is not the node's own.
func leaves(p *corev1.Pod) bool {
	if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return false
	}
	owner := metav1.GetControllerOf(p)
	return owner == nil || owner.Kind != "DaemonSet"
}

// bare tells whether nothing would make the pod again, though its work is not done.
func bare(p *corev1.Pod) bool {
	done := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	return metav1.GetControllerOf(p) == nil && !done && p.DeletionTimestamp == nil
}

func (d *drainer) refuseBare(pods []corev1.Pod) error {
	if d.Force {
		return nil
	}
	var names []string
	for _, p := range pods {
		if bare(&p) {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("node %s runs pods that no controller would make again: %s; delete them, or --force", d.Node, strings.Join(names, ", "))
}

func (d *drainer) cordon(ctx context.Context) error {
	_, err := d.Client.CoreV1().Nodes().Patch(ctx, d.Node, types.StrategicMergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil // never registered: nothing can be scheduled to it
	}
	if err != nil {
		return fmt.Errorf("cordon node %s: %w", d.Node, err)
	}
	return nil
}

func (d *drainer) evict(ctx context.Context, pods []corev1.Pod) error {
	for i := range pods {
		p := &pods[i]
		if p.DeletionTimestamp != nil {
			continue
		}
		err := d.Client.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
		})
		switch {
		case err == nil:
			d.say(p, "evicted")
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
			// Gone, or another by now: the next look tells.
		case apierrors.IsTooManyRequests(err):
			d.say(p, "stays for now: "+reason(err))
		default:
			return fmt.Errorf("evict pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return nil
}

// reason is what the server says, with the budget that is in the way.
func reason(err error) string {
	text := err.Error()
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		for _, c := range status.Status().Details.Causes {
			text += " " + c.Message
		}
	}
	return text
}

func (d *drainer) say(p *corev1.Pod, what string) {
	if d.told[p.UID] == what {
		return
	}
	d.told[p.UID] = what
	fmt.Fprintf(d.Progress, "  pod %s/%s %s\n", p.Namespace, p.Name, what)
}

// wait returns when pods have left the node, or it is time to try refused evictions again.
func (d *drainer) wait(ctx context.Context, version string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opts := d.selector()
	opts.ResourceVersion = version
	w, err := d.Client.CoreV1().Pods(metav1.NamespaceAll).Watch(ctx, opts)
	if err != nil {
		return fmt.Errorf("watch pods of node %s: %w", d.Node, err)
	}
	defer w.Stop()
	retry := time.NewTimer(d.RetryEvery)
	defer retry.Stop()
	for {
		select {
		case ev, ok := <-w.ResultChan():
			if !ok || ev.Type == watch.Deleted || ev.Type == watch.Error {
				return nil
			}
		case <-retry.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

func (d *drainer) unfinished(left []corev1.Pod) error {
	var what []string
	for _, p := range left {
		said := d.told[p.UID]
		if said == "" || said == "evicted" {
			said = "is still ending"
		}
		what = append(what, fmt.Sprintf("pod %s/%s %s", p.Namespace, p.Name, said))
	}
	text := strings.Join(what, "; ")
	if text == "" {
		text = "its pods are not known"
	}
	return fmt.Errorf("node %s is not drained: %s; it stays cordoned (kubectl uncordon %s, or try again)", d.Node, text, d.Node)
}
