package main

import (
	"math/rand"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// What is put into fields: words that mean something somewhere, so that rules are
// met as well as broken.
var (
	words = []string{
		"", "a", "a", "b", "c", "TCP", "UDP", "Always", "Never", "OnFailure", "IfNotPresent", "Exists", "Equal", "In", "NotIn",
		"DoesNotExist", "Gt", "NoSchedule", "NoExecute", "ClusterFirst", "None", "HTTP", "HTTPS", "metadata.name",
		"metadata.labels['x']", "limits.cpu", "requests.memory", "10.0.0.1", "fd00::1", "10.0.0.0/24", "127.0.0.1", "/abs",
		"rel/x", "../up", "..data", "v1", "Localhost", "RuntimeDefault", "Unconfined", "Bidirectional", "HostToContainer",
		"ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "ClientIP", "Local", "Cluster", "example.com/x",
		"kubernetes.io/x", "cpu", "memory", "storage", "hugepages-2Mi", "x y", "UPPER", "Restart", "NotRequired",
		"RestartContainer", "linux", "windows", "Pod", "Container", "PersistentVolumeClaim", "ReadWriteOnce",
		"ReadWriteOncePod", "Retain", "Delete", "Recycle", "Block", "Filesystem", "Terminating", "BestEffort",
		"net.ipv4.ip_forward", "kernel.shm_rmid_forced", "CAP_SYS_ADMIN", "Enabled", "Disabled", "IfPossible", "$(a)x",
		"DoNotSchedule", "ScheduleAnyway", "Honor", "PreferClose",
	}
	numbers    = []int64{0, 1, 2, -1, 5, 30, 80, 443, 511, 600, 70000, 86400, 1 << 20}
	quantities = []string{"0", "1", "100m", "-1", "1Gi", "2Mi", "3", "1.5"}
)

func pick[T any](random *rand.Rand, list []T) T { return list[random.Intn(len(list))] }

// mutate changes n fields somewhere in the value.
func mutate(v reflect.Value, random *rand.Rand, n int) {
	for range n {
		change(v, random)
	}
}

func change(v reflect.Value, random *rand.Rand) {
	switch v.Interface().(type) {
	case []metav1.ManagedFieldsEntry:
		return
	case metav1.Time, metav1.MicroTime:
		v.SetZero()
		if random.Intn(2) == 0 {
			v.Field(0).Set(reflect.ValueOf(time.Unix(1700000000, 0).UTC()))
		}
		return
	case resource.Quantity:
		v.Set(reflect.ValueOf(resource.MustParse(pick(random, quantities))))
		return
	case runtime.RawExtension:
		v.Set(reflect.ValueOf(runtime.RawExtension{Raw: []byte(`{"a":"b"}`)}))
		return
	case intstr.IntOrString:
		value := intstr.FromString(pick(random, words))
		if random.Intn(2) == 0 {
			value = intstr.FromInt32(int32(random.Intn(70000) - 100))
		}
		v.Set(reflect.ValueOf(value))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		switch {
		case v.IsNil():
			v.Set(reflect.New(v.Type().Elem()))
			if random.Intn(2) == 0 {
				change(v.Elem(), random)
			}
		case random.Intn(8) == 0:
			v.SetZero()
		default:
			change(v.Elem(), random)
		}
	case reflect.Struct:
		if v.NumField() > 0 {
			if f := v.Field(random.Intn(v.NumField())); f.CanSet() {
				change(f, random)
			}
		}
	case reflect.Slice:
		changeSlice(v, random)
	case reflect.Map:
		changed := reflect.MakeMap(v.Type())
		for _, k := range v.MapKeys() {
			if random.Intn(4) > 0 {
				changed.SetMapIndex(k, v.MapIndex(k))
			}
		}
		if random.Intn(3) > 0 {
			value := reflect.New(v.Type().Elem()).Elem()
			change(value, random)
			changed.SetMapIndex(reflect.ValueOf(pick(random, words)).Convert(v.Type().Key()), value)
		}
		v.Set(changed)
	case reflect.String:
		v.SetString(pick(random, words))
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(pick(random, numbers))
	}
}

func changeSlice(v reflect.Value, random *rand.Rand) {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		v.Set(reflect.ValueOf([]byte(pick(random, []string{"x", "{}", "[", ""}))).Convert(v.Type()))
		return
	}
	switch k := random.Intn(10); {
	case v.Len() > 0 && k == 0:
		v.SetZero()
	case v.Len() > 0 && k == 1: // one twice
		v.Set(reflect.Append(v, v.Index(random.Intn(v.Len()))))
	case v.Len() == 0 || k == 2:
		value := reflect.New(v.Type().Elem()).Elem()
		change(value, random)
		v.Set(reflect.Append(v, value))
	default:
		change(v.Index(random.Intn(v.Len())), random)
	}
}
