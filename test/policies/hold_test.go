package policies

import (
	"cmp"
	"fmt"
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// What gpumem writes on pods no one else writes, and of a pod that has a node nothing of the
// domain changes; all else about pods goes on.
func TestHoldAnnotations(t *testing.T) {
	const (
		atCreation = " is written by gpumem when it places the pod: remove it, also from a copy (kubectl debug --copy-to: add --profile=general)"
		byGPUShare = " is written by gpumem or gpushare when it places the pod: remove it"
		unplaced   = " is written by gpumem alone"
		placed     = " of a pod that has a node does not change any more"
	)
	tenant := &user.DefaultInfo{Name: "system:serviceaccount:team:dev"}
	admin := &user.DefaultInfo{Name: "admin", Groups: []string{cluster}}
	plugin := &user.DefaultInfo{Name: "system:serviceaccount:gpumem-system:gpumem-device-plugin"}
	type meta struct{ annotations, labels map[string]string }
	pod := func(node string, m meta) *v1.Pod {
		return &v1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", Annotations: m.annotations, Labels: m.labels},
			Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "main"}}},
		}
	}
	with := func(more ...string) (m meta) { // onto what the pod has, "" takes away
		m.annotations = map[string]string{"gpumem.dev/assignment": "{}", "gpumem.dev/gpu-count": "2", "example.com/owner": "me"}
		for i := 0; i < len(more); i += 2 {
			m.annotations[more[i]] = more[i+1]
			if more[i+1] == "" {
				delete(m.annotations, more[i])
			}
		}
		return m
	}
	labelled := func(more ...string) meta {
		m := with()
		m.labels = map[string]string{"gpumem.dev/team": "a", "app": "a"}
		for i := 0; i < len(more); i += 2 {
			m.labels[more[i]] = more[i+1]
			if more[i+1] == "" {
				delete(m.labels, more[i])
			}
		}
		return m
	}
	only := func(annotations ...string) meta {
		m := meta{annotations: map[string]string{}}
		for i := 0; i < len(annotations); i += 2 {
			m.annotations[annotations[i]] = annotations[i+1]
		}
		return m
	}
	for name, tc := range map[string]struct {
		node        string
		was         *meta // nil: it is created
		is          meta
		subresource string
		by          user.Info // default: tenant
		values      string    // default: default
		want        string
	}{
		"created plainly":                       {is: only("gpumem.dev/gpu-count", "2", "example.com/assignment", "x")},
		"created without annotations":           {},
		"created with an assignment":            {is: only("gpumem.dev/assignment", "{}"), want: "annotation gpumem.dev/assignment" + atCreation},
		"created so on a node":                  {node: "node1", is: only("gpumem.dev/assignment", "{}"), want: "annotation gpumem.dev/assignment" + atCreation},
		"created so by an administrator":        {is: only("gpumem.dev/assignment", "{}"), by: admin, want: atCreation},
		"created with an index":                 {is: only("gpumem.dev/gpu-index", "0"), want: "annotation gpumem.dev/gpu-index" + atCreation},
		"created as one that room was made for": {is: only("gpumem.dev/room-made", "now"), want: "annotation gpumem.dev/room-made" + atCreation},
		"created on a node, with what it asks":  {node: "node1", is: only("gpumem.dev/gpu-count", "2")},
		"created with a label":                  {is: meta{labels: map[string]string{"gpumem.dev/assignment": "x"}}},

		"waiting: what it asks":                  {was: new(with()), is: with("gpumem.dev/gpu-count", "4")},
		"waiting: no longer":                     {was: new(with()), is: with("gpumem.dev/gpu-count", "")},
		"waiting: another domain":                {was: new(with()), is: with("example.com/owner", "you")},
		"waiting: a label of the domain":         {was: new(labelled()), is: labelled("gpumem.dev/team", "b")},
		"waiting: a first annotation":            {was: new(meta{}), is: only("example.com/owner", "me")},
		"waiting: a first assignment":            {was: new(meta{}), is: only("gpumem.dev/assignment", "{}"), want: "annotation gpumem.dev/assignment" + unplaced},
		"waiting: another assignment":            {was: new(with()), is: with("gpumem.dev/assignment", "{x}"), want: "annotation gpumem.dev/assignment" + unplaced},
		"waiting: no assignment":                 {was: new(with()), is: with("gpumem.dev/assignment", ""), want: "annotation gpumem.dev/assignment" + unplaced},
		"waiting: no annotations at all":         {was: new(with()), want: "annotation gpumem.dev/assignment" + unplaced},
		"waiting: an index":                      {was: new(with()), is: with("gpumem.dev/gpu-index", "1"), want: "annotation gpumem.dev/gpu-index" + unplaced},
		"waiting: it is woken":                   {was: new(with()), is: with("gpumem.dev/room-made", "now"), want: "annotation gpumem.dev/room-made" + unplaced},
		"waiting: woken by its status":           {was: new(with()), is: with("gpumem.dev/room-made", "now"), subresource: "status"},
		"waiting: woken, first annotation":       {was: new(meta{}), is: only("gpumem.dev/room-made", "now"), subresource: "status"},
		"waiting: by its status, and more":       {was: new(with()), is: with("gpumem.dev/room-made", "now", "gpumem.dev/gpu-index", "1"), subresource: "status", want: unplaced},
		"waiting: by its status":                 {was: new(with()), is: with("gpumem.dev/assignment", "{x}"), subresource: "status", want: unplaced},
		"waiting: by hand":                       {was: new(with()), is: with("gpumem.dev/assignment", "{x}"), subresource: "status", by: admin},
		"waiting: by mistake":                    {was: new(with()), is: with("gpumem.dev/assignment", "{x}"), by: admin, want: unplaced},
		"on a node: nothing":                     {node: "node1", was: new(labelled()), is: labelled()},
		"on a node: another domain":              {node: "node1", was: new(with()), is: with("example.com/owner", "you", "gpumem.dev.example.com/x", "y", "my.gpumem.dev/x", "y")},
		"on a node: another's label":             {node: "node1", was: new(labelled()), is: labelled("app", "b")},
		"on a node: assignment":                  {node: "node1", was: new(with()), is: with("gpumem.dev/assignment", "{x}"), want: "annotation gpumem.dev/assignment" + placed},
		"on a node: no assignment":               {node: "node1", was: new(with()), is: with("gpumem.dev/assignment", ""), want: "annotation gpumem.dev/assignment" + placed},
		"on a node: how many GPUs":               {node: "node1", was: new(with()), is: with("gpumem.dev/gpu-count", "8"), want: "annotation gpumem.dev/gpu-count" + placed},
		"on a node: no longer how many":          {node: "node1", was: new(with()), is: with("gpumem.dev/gpu-count", ""), want: "annotation gpumem.dev/gpu-count" + placed},
		"on a node: policy":                      {node: "node1", was: new(with()), is: with("gpumem.dev/policy", "exclusive"), want: "annotation gpumem.dev/policy" + placed},
		"on a node: an empty policy":             {node: "node1", was: new(with()), is: only("gpumem.dev/assignment", "{}", "gpumem.dev/gpu-count", "2", "example.com/owner", "me", "gpumem.dev/policy", ""), want: "annotation gpumem.dev/policy" + placed},
		"on a node: group":                       {node: "node1", was: new(with()), is: with("gpumem.dev/exclusive-group", "a"), want: "annotation gpumem.dev/exclusive-group" + placed},
		"on a node: a name that is none yet":     {node: "node1", was: new(with()), is: with("gpumem.dev/later", "a"), want: "annotation gpumem.dev/later" + placed},
		"on a node: beneath another change":      {node: "node1", was: new(with()), is: with("example.com/owner", "you", "gpumem.dev/gpu-count", "8"), want: "annotation gpumem.dev/gpu-count" + placed},
		"on a node: all annotations":             {node: "node1", was: new(with()), want: placed},
		"on a node: a label":                     {node: "node1", was: new(labelled()), is: labelled("gpumem.dev/team", "b"), want: "label gpumem.dev/team" + placed},
		"on a node: a first label":               {node: "node1", was: new(with()), is: labelled(), want: "label gpumem.dev/team" + placed},
		"on a node: no label":                    {node: "node1", was: new(labelled()), is: labelled("gpumem.dev/team", ""), want: "label gpumem.dev/team" + placed},
		"on a node: by its status":               {node: "node1", was: new(with()), is: with("gpumem.dev/assignment", "{x}"), subresource: "status", want: placed},
		"on a node: what it asks, by its status": {node: "node1", was: new(with()), is: with("gpumem.dev/gpu-count", "8"), subresource: "status", want: placed},
		"on a node: room was made":               {node: "node1", was: new(with("gpumem.dev/room-made", "now")), is: with(), subresource: "status"},
		"on a node: by mistake":                  {node: "node1", was: new(with()), is: with("gpumem.dev/assignment", "{x}"), by: admin, want: placed},
		"on a node: by hand":                     {node: "node1", was: new(with()), is: with("gpumem.dev/assignment", "{x}"), subresource: "status", by: admin},
		"on a node: by the device plugin":        {node: "node1", was: new(with()), is: with("gpumem.dev/assignment", "{x}"), by: plugin},

		"aliyun.com: created with an index":      {values: "aliyun", is: only("ALIYUN_COM_GPU_MEM_IDX", "0"), want: "annotation ALIYUN_COM_GPU_MEM_IDX" + byGPUShare},
		"aliyun.com: created with a time":        {values: "aliyun", is: only("ALIYUN_COM_GPU_MEM_ASSUME_TIME", "1"), want: "annotation ALIYUN_COM_GPU_MEM_ASSUME_TIME" + byGPUShare},
		"aliyun.com: created with an allocation": {values: "aliyun", is: only("scheduler.framework.gpushare.allocation", "{}"), want: "annotation scheduler.framework.gpushare.allocation" + byGPUShare},
		"aliyun.com: created so on a node":       {values: "aliyun", node: "node1", is: only("ALIYUN_COM_GPU_MEM_IDX", "0"), want: "annotation ALIYUN_COM_GPU_MEM_IDX" + byGPUShare},
		"aliyun.com: created with another key":   {values: "aliyun", is: only("ALIYUN_COM_GPU_MEM_POD", "3")},
		"aliyun.com: created with ours":          {values: "aliyun", is: only("aliyun.com/assignment", "{}"), want: "annotation aliyun.com/assignment" + byGPUShare},
		"aliyun.com: updated by gpushare":        {values: "aliyun", was: new(only("example.com/owner", "me")), is: only("example.com/owner", "me", "ALIYUN_COM_GPU_MEM_IDX", "0", "ALIYUN_COM_GPU_MEM_ASSUME_TIME", "1")},
		"another domain: created with an index":  {is: only("ALIYUN_COM_GPU_MEM_IDX", "0")},
		"aliyun.com: ours under its domain":      {values: "aliyun", node: "node1", was: new(with()), is: with("aliyun.com/gpu-count", "8"), want: "annotation aliyun.com/gpu-count" + placed},
		"aliyun.com: gpushare's on a node":       {values: "aliyun", node: "node1", was: new(with()), is: with("ALIYUN_COM_GPU_MEM_IDX", "1", "k8s.aliyun.com/x", "y")},
	} {
		t.Run(name, func(t *testing.T) {
			r := request{resource: "pods", subresource: tc.subresource, is: pod(tc.node, tc.is), by: tenant}
			if tc.was != nil {
				r.was = pod(tc.node, *tc.was)
			}
			if tc.by != nil {
				r.by = tc.by
			}
			check(t, policy(t, cmp.Or(tc.values, "default"), "gpumem-hold-annotations"), r, tc.want)
		})
	}
}

// A pod with as many annotations and labels as fit is too much to look through key by key.
// Its kubelet and those who wait for its end are not kept from it.
func TestAPodWithManyKeysCanEnd(t *testing.T) {
	many := make(map[string]string)
	for i := range 100_000 {
		many[fmt.Sprint(i)] = "x"
	}
	kubelet := &user.DefaultInfo{Name: "system:node:node1", Groups: []string{"system:nodes"}}
	was := &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", Annotations: many, Labels: maps.Clone(many), Finalizers: []string{"batch.kubernetes.io/job-tracking"}},
		Spec:       v1.PodSpec{NodeName: "node1", Containers: []v1.Container{{Name: "main"}}},
	}
	p := policy(t, "default", "gpumem-hold-annotations")
	is := was.DeepCopy()
	is.Finalizers = nil
	check(t, p, request{resource: "pods", was: was, is: is, by: kubelet}, "")
	is.Status.Phase = v1.PodSucceeded
	check(t, p, request{resource: "pods", subresource: "status", was: was, is: is, by: kubelet}, "")
}
