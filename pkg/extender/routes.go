package extender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"

	"github.com/julienschmidt/httprouter"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/decisions"
	"github.com/gpumem/gpumem/pkg/serve"
)

// maxBody bounds a request, in bytes: 5,000 full Node objects of 20 KB fit.
const maxBody = 128 << 20

// Routes serves the verbs below "/", as kube-scheduler calls them, and under
// gpushare's names where gpushare has them.
func (e *Extender) Routes(version string) http.Handler {
	router := httprouter.New()
	prefixes := []string{""}
	if e.Names.GPUShare() {
		prefixes = append(prefixes, gpusharePrefix)
		router.GET(gpusharePrefix+"/inspect", e.inspectGPUShare)
		router.GET(gpusharePrefix+"/inspect/:node", e.inspectGPUShare)
	}
	for _, prefix := range prefixes {
		router.POST(prefix+"/filter", verb(e, decisions.Filter, e.Filter))
		router.POST(prefix+"/prioritize", verb(e, decisions.Prioritize, e.Prioritize))
		router.POST(prefix+"/preempt", verb(e, decisions.Preempt, e.Preempt))
		router.POST(prefix+"/bind", verb(e, decisions.Bind, e.Bind))
		router.GET(prefix+"/version", serve.Version(version))
	}
	router.PanicHandler = func(w http.ResponseWriter, r *http.Request, cause any) {
		e.Log.Error("handler panicked", zap.String("path", r.URL.Path), zap.Any("cause", cause), zap.ByteString("stack", debug.Stack()))
		writeError(w, http.StatusInternalServerError, errors.New("internal error; the log of gpumem-extender has the details"))
	}
	return router
}

// verb decodes a request, calls f and encodes its result.
func verb[In, Out any](e *Extender, name string, f func(context.Context, *In) *Out) httprouter.Handle {
	return func(w http.ResponseWriter, r *http.Request, _ httprouter.Params) {
		if e.Answered != nil {
			began := e.Now()
			defer func() { e.Answered(name, e.Now().Sub(began)) }()
		}
		in, status, err := read[In](w, r)
		if err != nil {
			e.Log.Warn("request refused", zap.String("path", r.URL.Path), zap.Int("status", status), zap.Error(err))
			writeError(w, status, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(f(r.Context(), in)); err != nil {
			e.Log.Warn("answer not delivered", zap.String("path", r.URL.Path), zap.Error(err))
		}
	}
}

func read[In any](w http.ResponseWriter, r *http.Request) (in *In, status int, err error) {
	tooLarge := fmt.Errorf("the body is larger than %d bytes", maxBody)
	if r.ContentLength > maxBody {
		return nil, http.StatusRequestEntityTooLarge, tooLarge
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	err = decoder.Decode(&in)
	if err == nil && in == nil {
		err = errors.New("the body is null")
	}
	if err == nil {
		if _, trailing := decoder.Token(); !errors.Is(trailing, io.EOF) {
			err = errors.New("something follows the JSON value")
		}
	}
	switch {
	case err == nil:
		return in, http.StatusOK, nil
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, http.StatusRequestEntityTooLarge, tooLarge
	case errors.Is(err, io.EOF):
		err = errors.New("the body is empty")
	}
	return nil, http.StatusBadRequest, fmt.Errorf("want a JSON %T: %w", *new(In), err)
}

func writeError(w http.ResponseWriter, status int, err error) {
	body, marshalErr := json.Marshal(map[string]string{"Error": err.Error()})
	if marshalErr != nil { // cannot be: a map of strings
		body = []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the client is gone: nobody to tell
}
