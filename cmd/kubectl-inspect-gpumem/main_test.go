package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// server serves lists in pages, as an API server does. If forgets is true, it lets a page token expire once.
type server struct {
	nodes []*v1.Node
	pods  []*v1.Pod

	forgets  bool
	requests []string
}

func (s *server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	query := req.URL.Query()
	s.requests = append(s.requests, req.URL.Path+" "+query.Get("fieldSelector"))
	from, _ := strconv.Atoi(query.Get("continue"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	w.Header().Set("Content-Type", "application/json")
	if from > 0 && s.forgets {
		s.forgets = false
		w.WriteHeader(http.StatusGone)
		status := apierrors.NewResourceExpired("the list has expired").Status()
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		_ = json.NewEncoder(w).Encode(status)
		return
	}
	page := func(total int) (to int, meta metav1.ListMeta) {
		if limit == 0 || from+limit >= total {
			return total, metav1.ListMeta{}
		}
		return from + limit, metav1.ListMeta{Continue: strconv.Itoa(from + limit)}
	}
	switch req.URL.Path {
	case "/api/v1/nodes":
		to, meta := page(len(s.nodes))
		list := v1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, ListMeta: meta}
		for _, n := range s.nodes[from:to] {
			list.Items = append(list.Items, *n)
		}
		_ = json.NewEncoder(w).Encode(list)
	case "/api/v1/pods":
		to, meta := page(len(s.pods))
		list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: meta}
		for _, p := range s.pods[from:to] {
			list.Items = append(list.Items, *p)
		}
		_ = json.NewEncoder(w).Encode(list)
	default:
		http.NotFound(w, req)
	}
}

func TestAgainstAServerInPages(t *testing.T) {
	for name, forgets := range map[string]bool{"all pages": false, "a page has expired": true} {
		t.Run(name, func(t *testing.T) {
			s := &server{forgets: forgets}
			s.nodes = append(s.nodes, kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 80, 80)))
			for i := range 1200 {
				s.pods = append(s.pods, kubetest.Pod(t, fmt.Sprintf("ml/p%d", i), "", 1))
			}
			for i := range 70 {
				s.pods = append(s.pods, kubetest.Pod(t, fmt.Sprintf("ml/r%d", i), "gpu-a", 1, kubetest.UUID("gpu-a", i%2)))
			}
			web := httptest.NewServer(s)
			defer web.Close()
			var out, errOut bytes.Buffer
			err := run(t.Context(), []string{"--kubeconfig", os.DevNull, "--server", web.URL, "-o", "json"}, genericiooptions.IOStreams{Out: &out, ErrOut: &errOut})
			if err != nil {
				t.Fatalf("%v: %s", err, errOut.String())
			}
			var r inspect.Report
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			if got := r.Nodes[0].Requested.Units; got != 70 {
				t.Errorf("requested %d, want 70", got)
			}
			if got := len(r.Waiting); got != 1200 {
				t.Errorf("%d pods wait, want 1200", got)
			}
			want := []string{"/api/v1/nodes "}
			for range 3 {
				want = append(want, "/api/v1/pods status.phase!=Succeeded,status.phase!=Failed")
			}
			want = append(want, "/api/v1/namespaces/gpumem-system/configmaps ", "/apis/apps/v1/namespaces/gpumem-system/deployments ")
			if diff := cmp.Diff(want, s.requests); !forgets && diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

func TestErrorsGoToStderr(t *testing.T) {
	var out, errOut bytes.Buffer
	missing := filepath.Join(t.TempDir(), "none")
	err := run(t.Context(), []string{"--kubeconfig", missing}, genericiooptions.IOStreams{Out: &out, ErrOut: &errOut})
	if err == nil || out.Len() > 0 || !strings.HasPrefix(errOut.String(), "error: ") {
		t.Errorf("error %v, stdout %q, stderr %q", err, out.String(), errOut.String())
	}
}

// The command's stderr has its own messages and the API server's warnings, but no log of client-go.
func TestStderrIsWithoutTheLogOfClientGo(t *testing.T) {
	starting := clitest.ExtenderPod("gpumem-scheduler-1")
	deployment, set := clitest.ExtenderSets()
	lists := map[string]any{
		"/api/v1/nodes":                         v1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}},
		"/api/v1/pods":                          v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}},
		"/api/v1/namespaces/gpumem-system/pods": v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []v1.Pod{*starting}},
		"/apis/apps/v1/namespaces/gpumem-system/deployments": appsv1.DeploymentList{TypeMeta: metav1.TypeMeta{Kind: "DeploymentList", APIVersion: "apps/v1"}, Items: []appsv1.Deployment{*deployment}},
		"/apis/apps/v1/namespaces/gpumem-system/replicasets": appsv1.ReplicaSetList{TypeMeta: metav1.TypeMeta{Kind: "ReplicaSetList", APIVersion: "apps/v1"}, Items: []appsv1.ReplicaSet{*set}},
		"/api/v1/namespaces/ml/pods/waits":                   kubetest.With(kubetest.Pod(t, "ml/waits", "", 3), func(p *v1.Pod) { p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"} }),
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
	const want = "Warning: v1 is old\nwarning: the scheduler's decisions cannot be read: pod gpumem-system/gpumem-scheduler-1 is not ready yet\n"
	if errOut.String() != want {
		t.Errorf("stderr is %q, want %q", errOut.String(), want)
	}
	if logged, err := os.ReadFile(path); err != nil || len(logged) > 0 {
		t.Errorf("error %v, and past the streams: %s", err, logged)
	}
}
