package load

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

// apiServer answers gpumem-extender as an API server does, from memory and at once. It creates nodes
// and running pods when a watch begins, and keeps only the pods that come later.
type apiServer struct {
	*httptest.Server
	nodes, running int
	bound          func(*v1.Binding)

	mu      sync.Mutex
	version int
	pods    map[string]*v1.Pod // by namespace and name
	watches []chan event       // of pods
}

// event is a change of an object, as a watch encodes it.
type event struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

func startAPI(nodes, running int) *apiServer {
	a := &apiServer{nodes: nodes, running: running, bound: func(*v1.Binding) {}, version: 1, pods: make(map[string]*v1.Pod)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		a.watch(w, r, a.nodes, func(i int) any {
			n := fleetNode(i)
			n.ManagedFields = managedFields("kubelet")
			return n
		}, &v1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}})
	})
	mux.HandleFunc("GET /api/v1/pods", func(w http.ResponseWriter, r *http.Request) {
		a.watch(w, r, a.running, func(i int) any { return runningPod(i, a.nodes) }, &v1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}})
	})
	mux.HandleFunc("GET /apis/policy/v1/poddisruptionbudgets", func(w http.ResponseWriter, r *http.Request) {
		a.watch(w, r, 0, nil, &policyv1.PodDisruptionBudget{TypeMeta: metav1.TypeMeta{Kind: "PodDisruptionBudget", APIVersion: "policy/v1"}})
	})
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods/{name}", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if pod := a.pods[r.PathValue("namespace")+"/"+r.PathValue("name")]; pod != nil {
			reply(w, http.StatusOK, pod)
			return
		}
		notFound(w, r)
	})
	mux.HandleFunc("POST /api/v1/namespaces/{namespace}/pods/{name}/binding", a.bind)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"major": "1", "minor": "36", "gitVersion": "v1.36.3"})
	})
	mux.HandleFunc("/", notFound)
	a.Server = httptest.NewServer(mux)
	return a
}

// kubeconfig writes a file with access to the server.
func (a *apiServer) kubeconfig(b *testing.B) string {
	b.Helper()
	file := filepath.Join(b.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: load, contexts: [{name: load, context: {cluster: load}}], clusters: [{name: load, cluster: {server: "` + a.URL + `"}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	return file
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client has gone
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusNotFound, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
	})
}

// watch streams the first n objects, a bookmark, and for pods each later change. A list is empty: the
// extender lists only to read the resource version.
func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, n int, object func(i int) any, mark metav1.Object) {
	a.mu.Lock()
	version := strconv.Itoa(a.version)
	events := make(chan event, 1<<16)
	_, isPods := mark.(*v1.Pod)
	if isPods && r.FormValue("watch") != "" {
		a.watches = append(a.watches, events)
	}
	a.mu.Unlock()
	if r.FormValue("watch") == "" {
		reply(w, http.StatusOK, map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]string{"resourceVersion": version}})
		return
	}
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.watches = slices.DeleteFunc(a.watches, func(c chan event) bool { return c == events })
	}()
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	out := json.NewEncoder(w)
	if r.FormValue("sendInitialEvents") == "true" {
		for i := range n {
			if out.Encode(event{"ADDED", object(i)}) != nil {
				return
			}
		}
		mark.SetResourceVersion(version)
		mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		_ = out.Encode(event{"BOOKMARK", mark}) // the next write fails too
	}
	for flusher := w.(http.Flusher); ; {
		flusher.Flush()
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			if out.Encode(e) != nil {
				return
			}
		}
	}
}

// create adds a pod.
func (a *apiServer) create(p *v1.Pod) { a.change("ADDED", p) }

// remove deletes a pod.
func (a *apiServer) remove(p *v1.Pod) { a.change("DELETED", p) }

func (a *apiServer) change(kind string, p *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	p = p.DeepCopy()
	p.ResourceVersion = strconv.Itoa(a.version)
	key := p.Namespace + "/" + p.Name
	if a.pods[key] = p; kind == "DELETED" {
		delete(a.pods, key)
	}
	for _, watch := range a.watches {
		watch <- event{kind, p}
	}
}

// bind binds a pod, and the kubelet starts it at once.
func (a *apiServer) bind(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	binding, ok := decoded.(*v1.Binding)
	a.mu.Lock()
	pod := a.pods[r.PathValue("namespace")+"/"+r.PathValue("name")]
	a.mu.Unlock()
	if err != nil || !ok || pod == nil {
		notFound(w, r)
		return
	}
	a.bound(binding)
	pod = pod.DeepCopy()
	pod.Spec.NodeName, pod.Annotations = binding.Target.Name, binding.Annotations
	started(pod)
	a.change("MODIFIED", pod)
	reply(w, http.StatusCreated, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusCreated})
}

// runningPod returns the i-th pod of a full cluster. It has the metadata of a pod of a Deployment.
// Two of five have 3 units of a GPU.
func runningPod(i, nodes int) *v1.Pod {
	node, app := i/5%nodes, fmt.Sprintf("app-%03d", i%300)
	p := fleetPod(fmt.Sprintf("team-%02d", i%40), app+"-7c9d8f6b54", i, 3)
	p.UID = types.UID(fmt.Sprintf("%08x-5b1e-4a5c-9d2f-%012x", i, i))
	p.GenerateName, p.ManagedFields = app+"-7c9d8f6b54-", managedFields("kube-controller-manager")
	p.Labels = map[string]string{
		"app.kubernetes.io/name": app, "app.kubernetes.io/instance": app + "-production", "app.kubernetes.io/managed-by": "Helm",
		"pod-template-hash": "7c9d8f6b54", "team": p.Namespace,
	}
	p.Annotations = map[string]string{"prometheus.io/scrape": "true", "checksum/config": strings.Repeat(fmt.Sprintf("%08x", i), 8)}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app + "-7c9d8f6b54", UID: p.UID, Controller: new(true)}}
	p.Spec.NodeName = nodeName(node)
	p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "metrics", Image: "registry.example.org/metrics:1"})
	if k := i % 5; k < 2 {
		p.Annotations[assignment] = fmt.Sprintf(`{"v":1,"unitMiB":1024,"gpus":[{"uuid":%q,"units":3}]}`, uuid(node, (i/(5*nodes)*2+k)%gpusPerNode))
	} else {
		delete(p.Spec.Containers[0].Resources.Limits, gpuMem)
		delete(p.Spec.Containers[0].Resources.Requests, gpuMem)
	}
	started(p)
	return p
}

// started sets the status of a pod that the kubelet has started.
func started(p *v1.Pod) {
	now := metav1.Now()
	p.Status.Phase, p.Status.StartTime = v1.PodRunning, &now
	for _, kind := range []v1.PodConditionType{v1.PodInitialized, v1.PodReady, v1.ContainersReady, v1.PodScheduled} {
		p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: kind, Status: v1.ConditionTrue, LastTransitionTime: now})
	}
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, v1.ContainerStatus{
			Name: c.Name, Ready: true, Image: c.Image, ContainerID: "containerd://" + strings.Repeat("fedcba98", 8),
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: now}},
		})
	}
}

// managedFields returns an entry of 3 KB, which clients drop.
func managedFields(manager string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:status":{"k:{\"type\":\"` + strings.Repeat("x", 3000) + `\"}":{}}}`),
	}}
}
