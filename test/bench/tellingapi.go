package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

// version is that of all lists.
const version = "1000000000"

// told is one kind of objects that an API server tells of and does not keep: it
// makes each when it comes to it. Nothing ever changes.
type told struct {
	list     string // the kind of a list of them
	version  schema.GroupVersion
	size     int
	object   func(i int) (runtime.Object, error)
	bookmark func() object // of their kind
}

// object is what all of them are.
type object interface {
	runtime.Object
	metav1.Object
}

// startAPI starts an API server that tells of nodes and pods. Its lists are in
// JSON, its watches in protobuf, whatever is asked for: clients go by what they
// are sent.
func startAPI(names api.Names, nodes, pods int) *httptest.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /api/v1/nodes", told{
		list: "NodeList", version: v1.SchemeGroupVersion, size: nodes,
		object:   func(i int) (runtime.Object, error) { return wholeNode(names, i) },
		bookmark: func() object { return new(v1.Node) },
	})
	mux.Handle("GET /api/v1/pods", told{
		list: "PodList", version: v1.SchemeGroupVersion, size: pods,
		object:   func(i int) (runtime.Object, error) { return wholePod(names, i) },
		bookmark: func() object { return new(v1.Pod) },
	})
	mux.Handle("GET /apis/policy/v1/poddisruptionbudgets", told{
		list: "PodDisruptionBudgetList", version: policyv1.SchemeGroupVersion,
		bookmark: func() object { return new(policyv1.PodDisruptionBudget) },
	})
	return httptest.NewServer(mux)
}

func (t told) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var err error
	if r.FormValue("watch") == "" {
		err = t.writeList(w)
	} else {
		err = t.writeWatch(w, r)
	}
	if err != nil && r.Context().Err() == nil {
		panic(http.ErrAbortHandler) // the client sees that the answer is not whole
	}
}

func (t told) writeList(w http.ResponseWriter) error {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":%q},"items":[`, t.list, t.version, version)
	for i := range t.size {
		o, err := t.object(i)
		if err != nil {
			return err
		}
		data, err := json.Marshal(o)
		if err != nil {
			return err
		}
		if i > 0 {
			data = append([]byte(","), data...)
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, "]}")
	return err
}

// writeWatch sends all objects first if that is asked for, and the mark behind
// them, and then nothing more.
func (t told) writeWatch(w http.ResponseWriter, r *http.Request) error {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	flusher, canFlush := w.(http.Flusher)
	if !ok || !canFlush {
		return errors.New("no streams of protobuf here")
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	objects := scheme.Codecs.EncoderForVersion(info.Serializer, t.version)
	events := streaming.NewEncoder(info.StreamSerializer.Framer.NewFrameWriter(w), scheme.Codecs.EncoderForVersion(info.StreamSerializer.Serializer, v1.SchemeGroupVersion))
	send := func(kind watch.EventType, o runtime.Object) error {
		data, err := runtime.Encode(objects, o)
		if err != nil {
			return err
		}
		return events.Encode(&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: data}})
	}
	if r.FormValue("sendInitialEvents") == "true" {
		for i := range t.size {
			o, err := t.object(i)
			if err != nil {
				return err
			}
			if err := send(watch.Added, o); err != nil {
				return err
			}
		}
		last := t.bookmark()
		last.SetResourceVersion(version)
		last.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		if err := send(watch.Bookmark, last); err != nil {
			return err
		}
	}
	flusher.Flush()
	<-r.Context().Done()
	return nil
}
