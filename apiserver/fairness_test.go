package apiserver_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

// crowded is a server whose user "nobody" is at a level of one seat, with one place to wait.
func crowded(t *testing.T) (s *servertest.Server, admin kubernetes.Interface, hold func() (release func())) {
	stop := make(chan struct{})
	arrived := make(chan struct{}, 16)
	s = servertest.Full(t, func(c *apiserver.Config) {
		c.Paths["/hold"] = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			arrived <- struct{}{}
			select {
			case <-stop:
			case <-req.Context().Done():
			}
			_, _ = io.WriteString(w, "held")
		})
	})
	admin = kubernetes.NewForConfigOrDie(s.Admin())
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(admin.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}, {Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}}}, metav1.CreateOptions{}))
	must(admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "all"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "all"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "nobody"}}}, metav1.CreateOptions{}))
	must(admin.FlowcontrolV1().PriorityLevelConfigurations().Create(ctx, &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "narrow"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementLimited, Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
			NominalConcurrencyShares: ptr.To(int32(0)), BorrowingLimitPercent: ptr.To(int32(0)),
			LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 1}},
		}},
	}, metav1.CreateOptions{}))
	must(admin.FlowcontrolV1().FlowSchemas().Create(ctx, &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "nobody"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "narrow"}, MatchingPrecedence: 500,
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects:         []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "nobody"}}},
				ResourceRules:    []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true, Namespaces: []string{"*"}}},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
			}},
		},
	}, metav1.CreateOptions{}))
	schema, err := admin.FlowcontrolV1().FlowSchemas().Get(ctx, "nobody", metav1.GetOptions{})
	must(schema, err)
	for { // until the schema and its level are known
		if resp := ask(t, nobody(s), "/api/v1/namespaces"); resp.Header.Get("X-Kubernetes-Pf-Flowschema-Uid") == string(schema.UID) && resp.StatusCode == http.StatusOK {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the FlowSchema does not count")
		}
	}
	return s, admin, func() func() {
		stop = make(chan struct{})
		done := make(chan struct{})
		go func() { defer close(done); ask(t, nobody(s), "/hold") }()
		<-arrived
		return func() { close(stop); <-done }
	}
}

func nobody(s *servertest.Server) *rest.Config {
	c := s.Config()
	c.BearerToken = servertest.UserToken
	return c
}

func ask(t *testing.T, c *rest.Config, path string) *http.Response {
	hc, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Error(err)
		return &http.Response{}
	}
	resp, err := hc.Get(c.Host + path)
	if err != nil {
		t.Error(err)
		return &http.Response{}
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	resp.Body.Close()
	resp.Body = io.NopCloser(strings.NewReader(string(body)))
	return resp
}

// A user who has used up his level waits or is refused, and nobody else notices.
func TestFairness(t *testing.T) {
	s, admin, hold := crowded(t)
	release := hold()
	waiting := make(chan int, 1)
	go func() { waiting <- ask(t, nobody(s), "/api/v1/namespaces").StatusCode }()
	metrics := func() string {
		text, _ := io.ReadAll(ask(t, s.Admin(), "/metrics").Body)
		return string(text)
	}
	for !strings.Contains(metrics(), `apiserver_flowcontrol_current_inqueue_requests{priority_level="narrow"} 1`) {
		if t.Context().Err() != nil {
			t.Fatal("nobody waits")
		}
	}
	resp := ask(t, nobody(s), "/api/v1/namespaces")
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "1" ||
		string(text) != "Too many requests, please try again later.\n" || resp.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid") == "" {
		t.Errorf("with no place to wait: %d %v %q", resp.StatusCode, resp.Header, text)
	}
	if _, err := admin.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("an administrator: %v", err)
	}
	release()
	if code := <-waiting; code != http.StatusOK {
		t.Errorf("who waited got %d", code)
	}
	m := metrics()
	for _, want := range []string{
		`apiserver_flowcontrol_current_limit_seats{priority_level="narrow"} 1`,
		`apiserver_flowcontrol_rejected_requests_total{flow_schema="nobody",priority_level="narrow",reason="queue-full"} 1`,
		`apiserver_flowcontrol_nominal_limit_seats{priority_level="workload-low"} 245`,
		`apiserver_flowcontrol_current_executing_requests{priority_level="narrow"} 0`,
	} {
		if !strings.Contains(m, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// A watch gives its seat back when it has sent what there is, however it begins.
func TestWatchesKeepNoSeats(t *testing.T) {
	s, _, _ := crowded(t)
	k := kubernetes.NewForConfigOrDie(nobody(s))
	for name, o := range map[string]metav1.ListOptions{
		"from now on":           {ResourceVersion: ""},
		"from what is cached":   {ResourceVersion: "0"},
		"with its initial list": {SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
		"nothing to be seen":    {LabelSelector: "no=thing"},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := k.CoreV1().Namespaces().Watch(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			made := fmt.Sprintf("ns-%s", strings.ReplaceAll(name, " ", "-"))
			if _, err := k.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: made}}, metav1.CreateOptions{}); err != nil {
				t.Fatalf("beside a watch: %v", err)
			}
			if o.LabelSelector != "" {
				return
			}
			for e := range w.ResultChan() {
				if ns, ok := e.Object.(*corev1.Namespace); ok && e.Type == watch.Added && ns.Name == made {
					return
				}
			}
			t.Error("the watch ended")
		})
	}
}

// FlowSchemas say whether their level exists, and one whose level does not is not matched.
func TestDangling(t *testing.T) {
	s := servertest.Full(t)
	k := kubernetes.NewForConfigOrDie(s.Admin())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w, err := k.FlowcontrolV1().FlowSchemas().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=mine"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	await := func(status flowcontrolv1.ConditionStatus) {
		t.Helper()
		for e := range w.ResultChan() {
			f, ok := e.Object.(*flowcontrolv1.FlowSchema)
			if ok && len(f.Status.Conditions) == 1 && f.Status.Conditions[0].Status == status {
				return
			}
		}
		t.Fatalf("never %s", status)
	}
	_, err = k.FlowcontrolV1().FlowSchemas().Create(ctx, &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		Spec:       flowcontrolv1.FlowSchemaSpec{PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "later"}, MatchingPrecedence: 700},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await(flowcontrolv1.ConditionTrue)
	_, err = k.FlowcontrolV1().PriorityLevelConfigurations().Create(ctx, &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "later"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await(flowcontrolv1.ConditionFalse)
	if err := k.FlowcontrolV1().PriorityLevelConfigurations().Delete(ctx, "later", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(flowcontrolv1.ConditionTrue)
}
