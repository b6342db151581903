package pods

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// Sources of static pods, as their annotation names them.
const (
	fileSource = "file"
	httpSource = "http"
)

// origin is where a manifest comes from.
type origin struct {
	source string
	place  string // path or URL
	node   string
}

// staticPods reads a manifest: a Pod or, from a URL, a PodList too.
func staticPods(raw []byte, o origin) ([]*corev1.Pod, error) {
	if documents(raw) > 1 {
		return nil, errors.New("it holds several documents: give each pod a file of its own")
	}
	js, err := yaml.YAMLToJSON(raw)
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	var meta metav1.TypeMeta
	if err := json.Unmarshal(js, &meta); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	switch {
	case meta.APIVersion == "v1" && meta.Kind == "Pod":
		p, err := staticPod(js, o)
		return []*corev1.Pod{p}, err
	case meta.APIVersion == "v1" && (meta.Kind == "PodList" || meta.Kind == "List") && o.source == httpSource:
		var list struct {
			Items []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(js, &list); err != nil {
			return nil, fmt.Errorf("parse: %w", err)
		}
		var out []*corev1.Pod
		for i, item := range list.Items {
			p, err := staticPod(item, o)
			if err != nil {
				return nil, fmt.Errorf("items[%d]: %w", i, err)
			}
			out = append(out, p)
		}
		return out, nil
	}
	return nil, fmt.Errorf("kind is %q of %q: it must be Pod of v1", meta.Kind, meta.APIVersion)
}

// documents counts those of a YAML stream that say something.
func documents(raw []byte) (n int) {
	for _, d := range bytes.Split(append([]byte("\n"), raw...), []byte("\n---")) {
		for _, line := range bytes.Split(d, []byte("\n")) {
			if l := bytes.TrimSpace(line); len(l) > 0 && l[0] != '#' {
				n++
				break
			}
		}
	}
	return n
}

// staticPod makes the pod of a manifest: the uid follows from its content and place.
func staticPod(js []byte, o origin) (*corev1.Pod, error) {
	p := &corev1.Pod{}
	if err := json.Unmarshal(js, p); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	if err := checkStatic(p); err != nil {
		return nil, err
	}
	h := fnv.New128a()
	h.Write(js)
	h.Write([]byte(o.node + o.place))
	sum := hex.EncodeToString(h.Sum(nil))
	if p.UID == "" {
		p.UID = types.UID(sum)
	}
	p.APIVersion, p.Kind = "v1", "Pod"
	p.Name += "-" + strings.ToLower(o.node)
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault
	}
	p.Spec.NodeName = o.node
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[sourceAnnotation], p.Annotations[hashAnnotation] = o.source, sum
	p.Annotations[seenAnnotation] = time.Now().Format(time.RFC3339Nano)
	delete(p.Annotations, mirrorAnnotation)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = nil, nil
	p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	defaults(p)
	return p, nil
}

// checkStatic finds what nobody else does: no API server has validated the pod, and one that
// it refuses as a mirror would run unseen.
func checkStatic(p *corev1.Pod) error {
	name := p.Name
	switch {
	case name == "":
		return errors.New("metadata.name is missing")
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		return fmt.Errorf("metadata.name %q: %s", name, validation.IsDNS1123Subdomain(name)[0])
	case p.Namespace != "" && len(validation.IsDNS1123Label(p.Namespace)) > 0:
		return fmt.Errorf("metadata.namespace %q: %s", p.Namespace, validation.IsDNS1123Label(p.Namespace)[0])
	case len(p.Spec.Containers) == 0:
		return errors.New("spec.containers is empty")
	case p.Spec.ServiceAccountName != "" || p.Spec.DeprecatedServiceAccount != "":
		return errors.New("spec.serviceAccountName: static pods have no service account")
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Secret != nil || v.ConfigMap != nil || v.PersistentVolumeClaim != nil || v.Projected != nil && refersToAPI(v.Projected) {
			return fmt.Errorf("spec.volumes[%d] %q: static pods cannot refer to objects of the API", i, v.Name)
		}
	}
	seen := map[string]bool{}
	for field, list := range map[string][]corev1.Container{"initContainers": p.Spec.InitContainers, "containers": p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			at := fmt.Sprintf("spec.%s[%d]", field, i)
			switch {
			case len(validation.IsDNS1123Label(c.Name)) > 0:
				return fmt.Errorf("%s.name %q: %s", at, c.Name, validation.IsDNS1123Label(c.Name)[0])
			case seen[c.Name]:
				return fmt.Errorf("%s.name %q: another container has that name", at, c.Name)
			case c.Image == "":
				return fmt.Errorf("%s.image is missing", at)
			case len(c.EnvFrom) > 0:
				return fmt.Errorf("%s.envFrom: static pods cannot refer to objects of the API", at)
			}
			for j := range c.Env {
				if f := c.Env[j].ValueFrom; f != nil && (f.SecretKeyRef != nil || f.ConfigMapKeyRef != nil) {
					return fmt.Errorf("%s.env[%d]: static pods cannot refer to objects of the API", at, j)
				}
			}
			seen[c.Name] = true
		}
	}
	return nil
}

func refersToAPI(p *corev1.ProjectedVolumeSource) bool {
	for _, s := range p.Sources {
		if s.Secret != nil || s.ConfigMap != nil || s.ServiceAccountToken != nil || s.ClusterTrustBundle != nil {
			return true
		}
	}
	return false
}

// defaults are those that the API server would have set and that matter here.
func defaults(p *corev1.Pod) {
	yes, thirty := true, int64(30)
	s := &p.Spec
	if s.RestartPolicy == "" {
		s.RestartPolicy = corev1.RestartPolicyAlways
	}
	if s.DNSPolicy == "" {
		s.DNSPolicy = corev1.DNSClusterFirst
	}
	if s.TerminationGracePeriodSeconds == nil {
		s.TerminationGracePeriodSeconds = &thirty
	}
	if s.EnableServiceLinks == nil {
		s.EnableServiceLinks = &yes
	}
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	probe := func(pr *corev1.Probe) {
		if pr == nil {
			return
		}
		for _, d := range []struct {
			v *int32
			n int32
		}{{&pr.TimeoutSeconds, 1}, {&pr.PeriodSeconds, 10}, {&pr.SuccessThreshold, 1}, {&pr.FailureThreshold, 3}} {
			if *d.v == 0 {
				*d.v = d.n
			}
		}
		if g := pr.HTTPGet; g != nil {
			if g.Path == "" {
				g.Path = "/"
			}
			if g.Port == (intstr.IntOrString{}) {
				g.Port = intstr.FromInt32(80)
			}
		}
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			c := &list[i]
			if c.ImagePullPolicy == "" {
				c.ImagePullPolicy = corev1.PullIfNotPresent
				if strings.HasSuffix(c.Image, ":latest") || !strings.Contains(c.Image[strings.LastIndex(c.Image, "/")+1:], ":") && !strings.Contains(c.Image, "@") {
					c.ImagePullPolicy = corev1.PullAlways
				}
			}
			if c.TerminationMessagePath == "" {
				c.TerminationMessagePath = corev1.TerminationMessagePathDefault
			}
			if c.TerminationMessagePolicy == "" {
				c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
			}
			for j := range c.Ports {
				if c.Ports[j].Protocol == "" {
					c.Ports[j].Protocol = corev1.ProtocolTCP
				}
				if s.HostNetwork && c.Ports[j].HostPort == 0 {
					c.Ports[j].HostPort = c.Ports[j].ContainerPort
				}
			}
			for k, v := range c.Resources.Limits {
				if _, ok := c.Resources.Requests[k]; !ok {
					if c.Resources.Requests == nil {
						c.Resources.Requests = corev1.ResourceList{}
					}
					c.Resources.Requests[k] = v
				}
			}
			probe(c.LivenessProbe)
			probe(c.ReadinessProbe)
			probe(c.StartupProbe)
		}
	}
}
