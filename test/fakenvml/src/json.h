// A small strict JSON reader (RFC 8259), so that the library depends on nothing but libc.
#ifndef FAKENVML_JSON_H
#define FAKENVML_JSON_H

#include <stdbool.h>
#include <stddef.h>

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

// One value. Members of an object and elements of an array hang on child, linked by next.
struct json {
	enum json_kind kind;
	bool boolean;
	double number;
	char *string; // NUL-terminated; a string that holds U+0000 is refused
	char *key;    // set on members of an object
	struct json *child;
	struct json *next;
};

// Returns NULL and writes a message into error when text is not one JSON value.
// text[length] must be NUL.
struct json *json_parse(const char *text, size_t length, char *error, size_t error_size);
void json_free(struct json *value);

// Returns the member of an object, or NULL.
const struct json *json_get(const struct json *object, const char *key);

#endif
