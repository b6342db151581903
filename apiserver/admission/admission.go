// Package admission holds the admission plugins that upstream 1.37 has on by default,
// one a file.
//
// Owns: what writes are changed or refused by policy beyond authorization and validation.
// Must not: keep state of a request, write objects, or talk to anything but the caches.
package admission

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/admission/policies"
	"github.com/skiff-k8s/skiff/apiserver/admission/webhooks"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/apiserver/webhook"
)

// Config configures the chain.
type Config struct {
	Caches lookup.Caches
	// Authorizer answers what plugins ask about the user beyond the request itself.
	Authorizer authorizer.UnconditionalAuthorizer
	// Catalog is what the server serves; asked once there are webhooks or policies, so that it may
	// be composed later. nil: webhooks and policies see each resource in the version of the request
	// only, and policies find no parameters.
	Catalog func() match.Catalog
	// Caller reaches admission webhooks; nil: there are none.
	Caller *webhook.Caller
	// Scheme knows the built-in kinds, for admission policies; nil: there are none.
	Scheme *runtime.Scheme
	// Extra plugins run after those of this package (RBAC's escalation check).
	Extra []seams.Admission
	// StorageProtection puts finalizers on volumes and claims; set where the controllers run that
	// take them off.
	StorageProtection bool
	Log               *slog.Logger
	// Clock defaults to the real one.
	Clock clock.Clock
}

// New returns the plugins in upstream's order.
func New(c Config) (seams.Chain, error) {
	if c.Caches == nil || c.Authorizer == nil {
		return nil, fmt.Errorf("admission: Caches and Authorizer must be set")
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	security, err := newPodSecurity(c.Caches)
	if err != nil {
		return nil, err
	}
	chain := seams.Chain{
		newNamespaceLifecycle(c.Caches, c.Clock),
		&limitRanger{caches: c.Caches},
		&serviceAccount{caches: c.Caches},
		&nodeRestriction{caches: c.Caches, authorizer: c.Authorizer},
		&taintNodes{},
		security,
		&priority{caches: c.Caches},
		&defaultTolerationSeconds{},
		&defaultStorageClass{caches: c.Caches},
	}
	if c.StorageProtection {
		chain = append(chain, &storageProtection{})
	}
	chain = append(chain,
		&claimResize{caches: c.Caches},
		&runtimeClass{caches: c.Caches},
		&certificates{authorizer: c.Authorizer},
		&defaultIngressClass{caches: c.Caches},
		&topologyLabels{caches: c.Caches},
		&podResize{caches: c.Caches},
		&deviceAdmin{caches: c.Caches},
	)
	chain = append(chain, c.Extra...)
	dynamic, err := c.dynamic(chain)
	if err != nil {
		return nil, err
	}
	chain = append(slices.Clip(chain), dynamic...)
	return append(chain, newResourceQuota(c.Caches, c.Clock)), nil
}

// dynamic are the plugins that do what users configured, after those given.
func (c *Config) dynamic(before seams.Chain) (seams.Chain, error) {
	mutation := &dynamicMutation{caches: c.Caches, catalog: c.Catalog, before: before}
	validation := &dynamicValidation{caches: c.Caches, catalog: c.Catalog}
	if c.Scheme != nil {
		config := policies.Config{Caches: c.Caches, Catalog: c.Catalog, Authorizer: c.Authorizer, Scheme: c.Scheme}
		m, err := policies.NewMutating(config)
		if err != nil {
			return nil, fmt.Errorf("admission: %w", err)
		}
		v, err := policies.NewValidating(config)
		if err != nil {
			return nil, fmt.Errorf("admission: %w", err)
		}
		mutation.mutators = append(mutation.mutators, m)
		validation.validators = append(validation.validators, v)
	}
	if c.Caller != nil {
		hooks := webhooks.Config{Caches: c.Caches, Caller: c.Caller, Authorizer: c.Authorizer, Log: c.Log}
		m, err := webhooks.NewMutating(hooks)
		if err != nil {
			return nil, fmt.Errorf("admission: %w", err)
		}
		v, err := webhooks.NewValidating(hooks)
		if err != nil {
			return nil, fmt.Errorf("admission: %w", err)
		}
		mutation.mutators = append(mutation.mutators, m)
		validation.validators = append(validation.validators, v)
	}
	return seams.Chain{mutation, validation}, nil
}

// validating is embedded by plugins that change nothing.
type validating struct{}

// Admit implements seams.Admission.
func (validating) Admit(context.Context, *seams.Attributes) error { return nil }

// mutating is embedded by plugins that refuse nothing in the second round.
type mutating struct{}

// Validate implements seams.Admission.
func (mutating) Validate(context.Context, *seams.Attributes) error { return nil }

// forbid is the 403 of a plugin. The name of an object that gets one generated is its prefix.
func forbid(a *seams.Attributes, format string, args ...any) error {
	return apierrors.NewForbidden(a.Resource.GroupResource(), nameOf(a), fmt.Errorf(format, args...))
}

func nameOf(a *seams.Attributes) string {
	if a.Name != "" {
		return a.Name
	}
	if a.Object != nil {
		if m, err := meta.Accessor(a.Object); err == nil {
			if m.GetName() != "" {
				return m.GetName()
			}
			if m.GetGenerateName() != "" {
				return m.GetGenerateName()
			}
		}
	}
	return "Unknown"
}

// is says whether a write is to a resource and one of its subresources ("" for itself).
func is(a *seams.Attributes, gr schema.GroupResource, subresource string) bool {
	return a.Resource.Group == gr.Group && a.Resource.Resource == gr.Resource && a.Subresource == subresource
}

var (
	pods       = schema.GroupResource{Resource: "pods"}
	namespaces = schema.GroupResource{Resource: "namespaces"}
	accounts   = schema.GroupResource{Resource: "serviceaccounts"}
)
