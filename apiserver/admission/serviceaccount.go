package admission

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// serviceAccount gives each pod an account, and its containers the account's token.
type serviceAccount struct {
	caches lookup.Caches
}

const (
	defaultAccount = "default"
	tokenVolume    = "kube-api-access-"
	tokenPath      = "/var/run/secrets/kubernetes.io/serviceaccount"
	rootCA         = "kube-root-ca.crt"
	// tokenSeconds is an hour and seven seconds: the odd number tells tokens that this plugin asked
	// for from others (KEP-2799's safe extension).
	tokenSeconds = 60*60 + 7
	// defaultAccountWait is how long a pod waits for the account that a controller makes in each new namespace.
	defaultAccountWait = 1500 * time.Millisecond

	enforceSecrets = "kubernetes.io/enforce-mountable-secrets"
)

func (s *serviceAccount) Admit(ctx context.Context, a *seams.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || a.Operation != seams.Create || !is(a, pods, "") || isMirror(pod) {
		return nil
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = defaultAccount
	}
	pod.Spec.DeprecatedServiceAccount = pod.Spec.ServiceAccountName
	account, err := s.account(ctx, a, pod)
	if err != nil {
		return err
	}
	if automounts(account, pod) {
		mountToken(pod)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 {
		for _, ref := range account.ImagePullSecrets {
			pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: ref.Name})
		}
	}
	return nil
}

func (s *serviceAccount) Validate(ctx context.Context, a *seams.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return nil
	}
	switch {
	case a.Operation == seams.Create && is(a, pods, ""):
		if isMirror(pod) {
			return mirrorUsesNothing(a, pod)
		}
	case a.Operation == seams.Update && is(a, pods, "ephemeralcontainers"):
	default:
		return nil
	}
	if pod.Spec.ServiceAccountName == "" {
		return forbid(a, "no service account specified for pod %s/%s", a.Namespace, pod.Name)
	}
	account, err := s.account(ctx, a, pod)
	if err != nil {
		return err
	}
	if enforce, _ := strconv.ParseBool(account.Annotations[enforceSecrets]); enforce {
		if err := onlyMountable(account, pod, a.Operation == seams.Update); err != nil {
			return forbid(a, "%w", err)
		}
	}
	return nil
}

func isMirror(p *corev1.Pod) bool {
	_, ok := p.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// account waits a little for the default account: in a new namespace a controller is about to make it.
func (s *serviceAccount) account(ctx context.Context, a *seams.Attributes, pod *corev1.Pod) (*corev1.ServiceAccount, error) {
	r, err := lookup.Resource(s.caches, accounts)
	if err != nil {
		return nil, err
	}
	wait := time.Duration(0)
	if pod.Spec.ServiceAccountName == defaultAccount {
		wait = defaultAccountWait
	}
	obj, err := lookup.Await(ctx, r, a.Namespace, pod.Spec.ServiceAccountName, wait)
	if apierrors.IsNotFound(err) {
		err = apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccount"}, pod.Spec.ServiceAccountName)
	}
	if err != nil {
		return nil, forbid(a, "error looking up service account %s/%s: %w", a.Namespace, pod.Spec.ServiceAccountName, err)
	}
	return obj.Runtime().(*corev1.ServiceAccount), nil
}

func automounts(account *corev1.ServiceAccount, pod *corev1.Pod) bool {
	if pod.Spec.AutomountServiceAccountToken != nil {
		return *pod.Spec.AutomountServiceAccountToken
	}
	return ptr.Deref(account.AutomountServiceAccountToken, true)
}

// mountToken mounts the token volume in each container that has nothing at its path yet.
func mountToken(pod *corev1.Pod) {
	name := ""
	for _, v := range pod.Spec.Volumes {
		if strings.HasPrefix(v.Name, tokenVolume) {
			name = v.Name
			break
		}
	}
	exists := name != ""
	if !exists {
		name = tokenVolume + rand.String(5)
	}
	used := false
	mount := func(containers []corev1.Container) {
		for i := range containers {
			c := &containers[i]
			if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenPath }) {
				continue
			}
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenPath})
			used = true
		}
	}
	mount(pod.Spec.InitContainers)
	mount(pod.Spec.Containers)
	if !exists && used {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: tokenSource()}})
	}
}

func tokenSource() *corev1.ProjectedVolumeSource {
	return &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To(corev1.ProjectedVolumeSourceDefaultMode),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](tokenSeconds)}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: rootCA},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path:     "namespace",
				FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		},
	}
}

// mirrorUsesNothing: mirror pods come from files on nodes, which must not reach into the API.
func mirrorUsesNothing(a *seams.Attributes, pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return forbid(a, "a mirror pod may not reference service accounts")
	}
	for range podSecrets(pod) {
		return forbid(a, "a mirror pod may not reference secrets")
	}
	for _, v := range pod.Spec.Volumes {
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool { return p.ServiceAccountToken != nil }) {
			return forbid(a, "a mirror pod may not use ServiceAccountToken volume projections")
		}
	}
	return nil
}

// onlyMountable enforces the account's list of Secrets, an old way to limit what its pods
// can read. On update only ephemeral containers are new.
func onlyMountable(account *corev1.ServiceAccount, pod *corev1.Pod, update bool) error {
	listed := map[string]bool{}
	for _, s := range account.Secrets {
		listed[s.Name] = true
	}
	check := func(kind, container string, env []corev1.EnvVar, from []corev1.EnvFromSource) error {
		for _, e := range env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && !listed[e.ValueFrom.SecretKeyRef.Name] {
				return fmt.Errorf("%s %s with envVar %s referencing secret.secretName=%q is not allowed because service account %s does not reference that secret",
					kind, container, e.Name, e.ValueFrom.SecretKeyRef.Name, account.Name)
			}
		}
		for _, f := range from {
			if f.SecretRef != nil && !listed[f.SecretRef.Name] {
				return fmt.Errorf("%s %s with envFrom referencing secret.secretName=%q is not allowed because service account %s does not reference that secret",
					kind, container, f.SecretRef.Name, account.Name)
			}
		}
		return nil
	}
	if update {
		for _, c := range pod.Spec.EphemeralContainers {
			if err := check("ephemeral container", c.Name, c.Env, c.EnvFrom); err != nil {
				return err
			}
		}
		return nil
	}
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil && !listed[v.Secret.SecretName] {
			return fmt.Errorf("volume with secret.secretName=%q is not allowed because service account %s does not reference that secret", v.Secret.SecretName, account.Name)
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if err := check("init container", c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	for _, c := range pod.Spec.Containers {
		if err := check("container", c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	for i, ref := range pod.Spec.ImagePullSecrets {
		if !slices.Contains(account.ImagePullSecrets, ref) {
			return fmt.Errorf("imagePullSecrets[%d].name=%q is not allowed because service account %s does not reference that imagePullSecret", i, ref.Name, account.Name)
		}
	}
	return nil
}
