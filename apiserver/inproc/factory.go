// Package inproc gives components in the API server's process ordinary client-go
// informers that are fed from the watch cache, sharing its objects: there is one copy of
// each object however many informers hold it.
//
// Owns: the informer factory. Must not: copy or change objects. Whoever gets an object
// from these informers must not change it either; the same rule as with any informer,
// only that here the API server itself would serve the change.
package inproc

import (
	"context"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/apiserverinternal"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/autoscaling"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/certificates"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/events"
	"k8s.io/client-go/informers/extensions"
	"k8s.io/client-go/informers/flowcontrol"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/lifecycle"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/informers/storagemigration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
)

// Caches finds the cache of a resource; *cacher.Caches does.
type Caches interface {
	Find(match func(*api.Resource) bool) (cacher.Resource, *api.Resource, bool)
}

// NewInformerFactory returns a factory whose informers read the caches. Types that no
// cache holds, as versions that are served by conversion, are read through client.
func NewInformerFactory(caches Caches, client kubernetes.Interface, resync time.Duration) informers.SharedInformerFactory {
	return &factory{
		SharedInformerFactory: informers.NewSharedInformerFactory(client, resync),
		caches:                caches,
	}
}

// factory is client-go's factory with another way to make informers. The group getters
// are there to pass this factory on, where client-go's would pass itself.
type factory struct {
	informers.SharedInformerFactory
	caches Caches
}

// InformerFor makes the informer of a type.
func (f *factory) InformerFor(obj runtime.Object, newFunc internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return f.SharedInformerFactory.InformerFor(obj, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		wanted := reflect.TypeOf(obj)
		r, _, ok := f.caches.Find(func(r *api.Resource) bool { return reflect.TypeOf(r.New()) == wanted })
		if !ok {
			return newFunc(client, resync)
		}
		return NewInformer(r, obj, resync)
	})
}

// NewInformer makes an informer of one resource, with the usual namespace index.
// example is an object of its type.
func NewInformer(r cacher.Resource, example runtime.Object, resync time.Duration) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformerWithOptions(listerWatcher{r.ListerWatcher()}, example, cache.SharedIndexInformerOptions{
		ResyncPeriod: resync,
		Indexers:     cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
	})
}

// listerWatcher has the older methods too, which informers ask for by type and do not call.
type listerWatcher struct {
	cache.ListerWatcherWithContext
}

func (l listerWatcher) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), o)
}

func (l listerWatcher) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), o)
}

// IsWatchListSemanticsUnSupported makes reflectors list, which costs nothing here.
func (listerWatcher) IsWatchListSemanticsUnSupported() bool { return true }

// ForResource makes the informer of a built-in resource. Factories tell informers apart
// by Go type, which custom resources have in common.
func (f *factory) ForResource(gvr schema.GroupVersionResource) (informers.GenericInformer, error) {
	_, r, ok := f.caches.Find(func(r *api.Resource) bool {
		_, custom := r.New().(runtime.Unstructured)
		return r.GVR() == gvr && !custom
	})
	if !ok {
		return f.SharedInformerFactory.ForResource(gvr)
	}
	return &genericInformer{informer: f.InformerFor(r.New(), nil), resource: gvr.GroupResource()}, nil
}

type genericInformer struct {
	informer cache.SharedIndexInformer
	resource schema.GroupResource
}

func (g *genericInformer) Informer() cache.SharedIndexInformer { return g.informer }

func (g *genericInformer) Lister() cache.GenericLister {
	return cache.NewGenericLister(g.informer.GetIndexer(), g.resource)
}

func (f *factory) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, "", nil)
}

func (f *factory) Internal() apiserverinternal.Interface { return apiserverinternal.New(f, "", nil) }
func (f *factory) Apps() apps.Interface                  { return apps.New(f, "", nil) }
func (f *factory) Autoscaling() autoscaling.Interface    { return autoscaling.New(f, "", nil) }
func (f *factory) Batch() batch.Interface                { return batch.New(f, "", nil) }
func (f *factory) Certificates() certificates.Interface  { return certificates.New(f, "", nil) }
func (f *factory) Coordination() coordination.Interface  { return coordination.New(f, "", nil) }
func (f *factory) Core() core.Interface                  { return core.New(f, "", nil) }
func (f *factory) Discovery() discovery.Interface        { return discovery.New(f, "", nil) }
func (f *factory) Events() events.Interface              { return events.New(f, "", nil) }
func (f *factory) Extensions() extensions.Interface      { return extensions.New(f, "", nil) }
func (f *factory) Flowcontrol() flowcontrol.Interface    { return flowcontrol.New(f, "", nil) }
func (f *factory) Lifecycle() lifecycle.Interface        { return lifecycle.New(f, "", nil) }
func (f *factory) Networking() networking.Interface      { return networking.New(f, "", nil) }
func (f *factory) Node() node.Interface                  { return node.New(f, "", nil) }
func (f *factory) Policy() policy.Interface              { return policy.New(f, "", nil) }
func (f *factory) Rbac() rbac.Interface                  { return rbac.New(f, "", nil) }
func (f *factory) Resource() resource.Interface          { return resource.New(f, "", nil) }
func (f *factory) Scheduling() scheduling.Interface      { return scheduling.New(f, "", nil) }
func (f *factory) Storage() storage.Interface            { return storage.New(f, "", nil) }

func (f *factory) Storagemigration() storagemigration.Interface {
	return storagemigration.New(f, "", nil)
}
