package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
)

func (p pod) object(version int) map[string]any {
	units := strconv.Itoa(len(p.ids))
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"namespace": namespace, "name": p.name, "uid": p.uid, "resourceVersion": strconv.Itoa(version), "creationTimestamp": "2026-01-01T00:00:00Z"},
		"spec": map[string]any{"nodeName": "here", "schedulerName": "gpumem-scheduler", "containers": []any{map[string]any{
			"name": "main", "image": "kit", "resources": map[string]any{"limits": map[string]any{resource: units}, "requests": map[string]any{resource: units}},
		}}},
		"status": map[string]any{"phase": "Running", "containerStatuses": []any{map[string]any{
			"name": "main", "containerID": "containerd://" + p.container, "ready": true, "image": "kit", "imageID": "kit", "state": map[string]any{"running": map[string]any{}},
		}}},
	}
}

// ServeHTTP serves the API server's part: this node, its pods, and writes that change neither.
func (n *node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	switch {
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/events"):
		n.append(&n.events, string(body))
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	case r.Method == http.MethodPatch:
		n.append(&n.patches, r.URL.Path+" "+string(body))
		n.one(w, r)
	case r.Method != http.MethodGet:
		refuse(w)
	case strings.HasSuffix(r.URL.Path, "/pods"):
		n.list(w, r, "Pod", n.objects)
	case strings.HasSuffix(r.URL.Path, "/nodes"):
		n.list(w, r, "Node", func() []any { return []any{self()} })
	default:
		n.one(w, r)
	}
}

func (n *node) append(list *[]string, text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*list = append(*list, text)
}

// one writes one pod, or the node.
func (n *node) one(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := filepath.Base(strings.TrimSuffix(r.URL.Path, "/status"))
	if strings.Contains(r.URL.Path, "/nodes/") && name == "here" {
		_ = json.NewEncoder(w).Encode(self())
		return
	}
	for i, p := range n.pods {
		if strings.Contains(r.URL.Path, "/pods/") && p.name == name {
			_ = json.NewEncoder(w).Encode(p.object(i + 2))
			return
		}
	}
	refuse(w)
}

// self returns the node's object. Patches do not change it.
func self() map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "here", "uid": "here", "resourceVersion": "1", "labels": map[string]any{}}, "spec": map[string]any{}, "status": map[string]any{}}
}

func refuse(w http.ResponseWriter) {
	w.WriteHeader(http.StatusForbidden)
	fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"the kit serves one node and its pods"}`)
}

// objects returns all pods. The caller holds the lock.
func (n *node) objects() (all []any) {
	for i, p := range n.pods {
		all = append(all, p.object(i+2))
	}
	return all
}

// list writes a list, or streams its objects and later ones until the client ends the request.
func (n *node) list(w http.ResponseWriter, r *http.Request, kind string, objects func() []any) {
	query, encode := r.URL.Query(), json.NewEncoder(w)
	n.mu.Lock()
	items, changed := objects(), n.changed
	n.mu.Unlock()
	meta := func() map[string]any { return map[string]any{"resourceVersion": strconv.Itoa(len(items) + 1)} }
	if query.Get("watch") == "" {
		_ = encode.Encode(map[string]any{"kind": kind + "List", "apiVersion": "v1", "metadata": meta(), "items": append([]any{}, items...)})
		return
	}
	sent, initial := len(items), query.Get("sendInitialEvents") == "true"
	if v, err := strconv.Atoi(query.Get("resourceVersion")); err == nil && v > 0 {
		sent = min(sent, v-1)
	}
	if initial {
		sent = 0
	}
	for {
		for ; sent < len(items); sent++ {
			_ = encode.Encode(map[string]any{"type": "ADDED", "object": items[sent]})
		}
		if initial {
			mark := meta()
			mark["annotations"] = map[string]any{"k8s.io/initial-events-end": "true"}
			_ = encode.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"kind": kind, "apiVersion": "v1", "metadata": mark}})
			initial = false
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
		n.mu.Lock()
		items, changed = objects(), n.changed
		n.mu.Unlock()
	}
}
