package aggregator

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/webhook"
)

const (
	// recheck is how often a server is looked at that works; one that does not is looked at sooner.
	recheck      = 30 * time.Second
	recheckSoon  = time.Second
	checkTimeout = 5 * time.Second
)

// checkAll keeps the Available conditions true, one server after the other. Without
// APIServices it sleeps until there is one.
func (a *Aggregator) checkAll(ctx context.Context) {
	for {
		var next <-chan time.Time
		table := *a.table.Load()
		if len(table) > 0 {
			wait := recheck
			for gv, r := range table {
				ok, err := a.check(ctx, gv, r)
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					a.Log.Warn("cannot write the status of an APIService", "apiservice", r.service.Name, "err", err)
				}
				if !ok || err != nil {
					wait = recheckSoon
				}
			}
			next = a.Clock.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-next:
		}
	}
}

// check looks at one server, and writes what changed.
func (a *Aggregator) check(ctx context.Context, gv schema.GroupVersion, r *remote) (ok bool, err error) {
	c := a.condition(ctx, gv, r)
	_, err = a.services.Update(ctx, "", r.service.Name, false, cacher.Preconditions{}, func(current cacher.Object) (runtime.Object, time.Duration, error) {
		s, is := current.Runtime().(*apiregistrationv1.APIService)
		if !is {
			return nil, 0, fmt.Errorf("cache of %s holds a %T", gr, current.Runtime())
		}
		// Returned as it is, nothing is written.
		next := s.DeepCopy()
		if s.UID != r.service.UID {
			return next, 0, nil
		}
		i := slices.IndexFunc(next.Status.Conditions, func(o apiregistrationv1.APIServiceCondition) bool { return o.Type == c.Type })
		if i < 0 {
			next.Status.Conditions = append(next.Status.Conditions, c)
			return next, 0, nil
		}
		old := &next.Status.Conditions[i]
		if old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message {
			return next, 0, nil
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		*old = c
		return next, 0, nil
	})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return c.Status == apiregistrationv1.ConditionTrue, err
}

func (a *Aggregator) condition(ctx context.Context, gv schema.GroupVersion, r *remote) apiregistrationv1.APIServiceCondition {
	c := apiregistrationv1.APIServiceCondition{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionFalse,
		LastTransitionTime: metav1.NewTime(a.Clock.Now()).Rfc3339Copy()}
	at := r.service.Spec.Service
	_, err := lookup.CachedOrFresh[*corev1.Service](ctx, a.Caches, schema.GroupResource{Resource: "services"}, at.Namespace, at.Name)
	switch {
	case apierrors.IsNotFound(err):
		c.Reason, c.Message = "ServiceNotFound", fmt.Sprintf("service/%s in %q is not present", at.Name, at.Namespace)
		return c
	case err != nil:
		c.Status, c.Reason, c.Message = apiregistrationv1.ConditionUnknown, "ServiceAccessError", fmt.Sprintf("service/%s in %q cannot be checked due to: %v", at.Name, at.Namespace, err)
		return c
	}
	if _, err := webhook.Resolve(ctx, a.Caches, at.Namespace, at.Name, r.key.port); err != nil {
		c.Reason, c.Message = "MissingEndpoints", fmt.Sprintf("endpoints for service/%s in %q have no usable addresses: %v", at.Name, at.Namespace, err)
		return c
	}
	list, err := r.resources(ctx, gv)
	if err != nil {
		c.Reason, c.Message = "FailedDiscoveryCheck", fmt.Sprintf("failing or missing response from https://%s:%d/apis/%s: %v", r.key.host(), r.key.port, gv, err)
		return c
	}
	r.discovery.Store(discoveryOf(gv, list))
	c.Status, c.Reason, c.Message = apiregistrationv1.ConditionTrue, "Passed", "all checks passed"
	return c
}

// aggregatorUser is who asks other servers on this server's own behalf.
var aggregatorUser = &user.DefaultInfo{Name: "system:kube-aggregator", Groups: []string{user.SystemPrivilegedGroup}}

// resources asks a server what it has.
func (r *remote) resources(ctx context.Context, gv schema.GroupVersion) (*metav1.APIResourceList, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://%s:%d/apis/%s", r.key.host(), r.key.port, gv), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	speakFor(req.Header, aggregatorUser)
	resp, err := r.transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 10<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, fmt.Errorf("bad status from https://%s:%d/apis/%s: %d", r.key.host(), r.key.port, gv, resp.StatusCode)
	}
	list := &metav1.APIResourceList{}
	if err := json.Unmarshal(body, list); err != nil {
		return nil, fmt.Errorf("decode resources: %w", err)
	}
	return list, nil
}

// discoveryOf says in the aggregated form what a list says in the old one.
func discoveryOf(gv schema.GroupVersion, list *metav1.APIResourceList) *discoveryv2.APIVersionDiscovery {
	out := &discoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: discoveryv2.DiscoveryFreshnessCurrent}
	kind := func(r *metav1.APIResource) *metav1.GroupVersionKind {
		k := &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
		if k.Version == "" {
			k.Group, k.Version = gv.Group, gv.Version
		}
		return k
	}
	at := map[string]int{}
	for i := range list.APIResources {
		r := &list.APIResources[i]
		if strings.Contains(r.Name, "/") {
			continue
		}
		scope := discoveryv2.ScopeCluster
		if r.Namespaced {
			scope = discoveryv2.ScopeNamespace
		}
		at[r.Name] = len(out.Resources)
		out.Resources = append(out.Resources, discoveryv2.APIResourceDiscovery{Resource: r.Name, ResponseKind: kind(r), Scope: scope,
			SingularResource: r.SingularName, Verbs: r.Verbs, ShortNames: r.ShortNames, Categories: r.Categories})
	}
	for i := range list.APIResources {
		r := &list.APIResources[i]
		parent, sub, isSub := strings.Cut(r.Name, "/")
		if j, ok := at[parent]; ok && isSub {
			out.Resources[j].Subresources = append(out.Resources[j].Subresources, discoveryv2.APISubresourceDiscovery{Subresource: sub, ResponseKind: kind(r), Verbs: r.Verbs})
		}
	}
	return out
}
