package dns

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

const (
	bySliceService = "dns/service"
	byIP           = "dns/ip"
)

// informerView is a View over shared informers; it holds no copy of anything.
type informerView struct {
	services, slices cache.Indexer
}

func newInformerView(f informers.SharedInformerFactory) (*informerView, []cache.InformerSynced, error) {
	svcs, slices := f.Core().V1().Services().Informer(), f.Discovery().V1().EndpointSlices().Informer()
	err := svcs.AddIndexers(cache.Indexers{
		byIP: func(o any) ([]string, error) {
			if s, ok := o.(*corev1.Service); ok && s.Spec.ClusterIP != corev1.ClusterIPNone {
				return s.Spec.ClusterIPs, nil
			}
			return nil, nil
		},
	})
	if err == nil {
		err = slices.AddIndexers(cache.Indexers{
			bySliceService: func(o any) ([]string, error) {
				if s, ok := o.(*discoveryv1.EndpointSlice); ok {
					return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
				}
				return nil, nil
			},
			byIP: func(o any) ([]string, error) {
				var ips []string
				if s, ok := o.(*discoveryv1.EndpointSlice); ok {
					for i := range s.Endpoints {
						ips = append(ips, s.Endpoints[i].Addresses...)
					}
				}
				return ips, nil
			},
		})
	}
	v := &informerView{services: svcs.GetIndexer(), slices: slices.GetIndexer()}
	return v, []cache.InformerSynced{svcs.HasSynced, slices.HasSynced}, err
}

func (v *informerView) Service(namespace, name string) *corev1.Service {
	o, ok, err := v.services.GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil
	}
	return o.(*corev1.Service)
}

func (v *informerView) Slices(namespace, service string) []*discoveryv1.EndpointSlice {
	return slicesBy(v.slices, bySliceService, namespace+"/"+service)
}

func (v *informerView) SlicesByIP(ip netip.Addr) []*discoveryv1.EndpointSlice {
	return slicesBy(v.slices, byIP, ip.String())
}

func slicesBy(ix cache.Indexer, index, key string) []*discoveryv1.EndpointSlice {
	objs, err := ix.ByIndex(index, key)
	if err != nil {
		return nil // only an index that was never added
	}
	out := make([]*discoveryv1.EndpointSlice, 0, len(objs))
	for _, o := range objs {
		out = append(out, o.(*discoveryv1.EndpointSlice))
	}
	return out
}

func (v *informerView) HasNamespace(namespace string) bool {
	keys, err := v.services.IndexKeys(cache.NamespaceIndex, namespace)
	return err == nil && len(keys) > 0
}

func (v *informerView) ServiceByIP(ip netip.Addr) *corev1.Service {
	objs, err := v.services.ByIndex(byIP, ip.String())
	if err != nil || len(objs) == 0 {
		return nil
	}
	return objs[0].(*corev1.Service)
}
