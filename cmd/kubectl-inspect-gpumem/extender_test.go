package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// What a user reads on stderr are sentences of this command: client-go has a log,
// and servers have warnings.
func TestStderrIsWithoutTheLogOfClientGo(t *testing.T) {
	starting := extenderPod("gpumem-scheduler-1")
	deployment, set := extenderSets()
	lists := map[string]any{
		"/api/v1/nodes":                         v1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}},
		"/api/v1/pods":                          v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}},
		"/api/v1/namespaces/gpumem-system/pods": v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []v1.Pod{*starting}},
		"/apis/apps/v1/namespaces/gpumem-system/deployments": appsv1.DeploymentList{TypeMeta: metav1.TypeMeta{Kind: "DeploymentList", APIVersion: "apps/v1"}, Items: []appsv1.Deployment{*deployment}},
		"/apis/apps/v1/namespaces/gpumem-system/replicasets": appsv1.ReplicaSetList{TypeMeta: metav1.TypeMeta{Kind: "ReplicaSetList", APIVersion: "apps/v1"}, Items: []appsv1.ReplicaSet{*set}},
		"/api/v1/namespaces/ml/pods/waits":                   with(makePod(t, "ml/waits", "", 3), func(p *v1.Pod) { p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"} }),
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Warning", `299 - "v1 is old"`)
		object, ok := lists[req.URL.Path]
		if !ok {
			http.NotFound(w, req)
			return
		}
		_ = json.NewEncoder(w).Encode(object)
	}))
	defer web.Close()

	path := filepath.Join(t.TempDir(), "stderr")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = file
	var out, errOut bytes.Buffer
	err = run(t.Context(), []string{"--kubeconfig", os.DevNull, "--server", web.URL, "explain", "ml/waits"}, genericiooptions.IOStreams{Out: &out, ErrOut: &errOut})
	utilruntime.HandleError(errors.New("an error occurred forwarding 40321 -> 8013"))
	os.Stderr = stderr
	if err != nil {
		t.Fatal(err)
	}
	const want = "Warning: v1 is old\nwarning: what was decided cannot be read: pod gpumem-system/gpumem-scheduler-1 is not ready yet\n"
	if errOut.String() != want {
		t.Errorf("stderr is %q, want %q", errOut.String(), want)
	}
	if logged, err := os.ReadFile(path); err != nil || len(logged) > 0 {
		t.Errorf("error %v, and past the streams: %s", err, logged)
	}
}
