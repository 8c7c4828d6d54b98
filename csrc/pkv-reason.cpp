#include "pkv-reason.h"

#include "llama-impl.h"

#include <cstdarg>
#include <cstdio>

static thread_local std::string g_reason;

void pkv_reason_clear() {
    g_reason.clear();
}

bool pkv_refuse(const char * fmt, ...) {
    char text[512];

    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);

    g_reason = text;
    LLAMA_LOG_WARN("pyllamakv: refused: %s\n", text);

    return false;
}

const std::string & pkv_reason() {
    return g_reason;
}
