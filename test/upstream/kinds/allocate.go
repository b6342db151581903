package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

// allocate checks that both servers give out of the same ranges: nothing twice, and what one
// has taken back the other can give.
func (t *pair) allocate(ctx context.Context) {
	services := "/api/v1/namespaces/" + namespace + "/services"
	service := func(name, ip string, port int) object {
		p := object{"port": 80}
		if port != 0 {
			p["nodePort"] = port
		}
		spec := object{"type": "NodePort", "ports": []any{p}}
		if ip != "" {
			spec["clusterIP"] = ip
		}
		return object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name}, "spec": spec}
	}
	res := t.result("allocate", "v1/services", "")
	seen := map[string]string{}
	var diffs []string
	for i := range 60 {
		s := t.writer
		if i%2 == 1 {
			s = t.reader
		}
		o, err := s.do(ctx, http.MethodPost, services, "", service(fmt.Sprintf("auto-%d", i), "", 0))
		if err != nil {
			t.fail(res, err)
			return
		}
		spec := o["spec"].(object)
		name := o["metadata"].(object)["name"].(string)
		for _, v := range []string{fmt.Sprint(spec["clusterIP"]), fmt.Sprint(spec["ports"].([]any)[0].(object)["nodePort"])} {
			if other := seen[v]; other != "" {
				diffs = append(diffs, fmt.Sprintf("%s was given to %s and %s", v, other, name))
			}
			seen[v] = name
		}
	}
	for i, s := range []*server{t.writer, t.reader} {
		other := []*server{t.reader, t.writer}[i]
		// Of the part of each range that is not given without being asked for (KEP-3070, KEP-3668).
		ip, port := fmt.Sprintf("10.96.0.%d", 20+i), 30020+i
		name := fmt.Sprintf("fixed-%d", i)
		if _, err := s.do(ctx, http.MethodPost, services, "", service(name, ip, port)); err != nil {
			t.fail(res, err)
			return
		}
		for what, o := range map[string]object{"address": service("again", ip, 0), "port": service("again", "", port)} {
			_, err := other.do(ctx, http.MethodPost, services, "", o)
			if err == nil || !strings.Contains(err.Error(), "already allocated") {
				diffs = append(diffs, fmt.Sprintf("%s of %s was given again by %s: %v", what, s.name, other.name, err))
			}
		}
		if _, err := other.do(ctx, http.MethodDelete, services+"/"+name, "", nil); err != nil {
			t.fail(res, err)
			return
		}
		if _, err := s.do(ctx, http.MethodPost, services, "", service(name, ip, port)); err != nil {
			diffs = append(diffs, fmt.Sprintf("what %s took back %s cannot give: %v", other.name, s.name, err))
		}
	}
	t.add(res, diffs...)

	// Both servers are endpoints of the kubernetes Service.
	res = t.result("endpoints", "v1/endpoints", "default/kubernetes")
	o, err := t.reader.get(ctx, "/api/v1/namespaces/default/endpoints/kubernetes")
	if err != nil {
		t.fail(res, err)
		return
	}
	text := short(o["subsets"])
	for _, ip := range []string{"192.0.2.1", "192.0.2.2"} {
		if !strings.Contains(text, ip) {
			t.add(res, fmt.Sprintf("%s is missing in %s", ip, text))
			return
		}
	}
	t.add(res)
}

// token checks that a ServiceAccount's token of one server is good at the other.
func (t *pair) token(ctx context.Context) {
	for i, s := range []*server{t.writer, t.reader} {
		other := []*server{t.reader, t.writer}[i]
		res := t.result("token of "+s.name, "v1/serviceaccounts", namespace+"/default")
		o, err := s.do(ctx, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts/default/token", "", object{
			"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": object{},
		})
		if err != nil {
			t.fail(res, err)
			continue
		}
		review, err := other.do(ctx, http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", "", object{
			"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": object{"token": o["status"].(object)["token"]},
		})
		if err != nil {
			t.fail(res, err)
			continue
		}
		status := review["status"].(object)
		if status["authenticated"] != true {
			t.add(res, "not authenticated: "+short(status))
			continue
		}
		t.add(res)
	}
}
