// The text behind pkv_last_reason(): one per thread, set by whoever refuses an edit.
#pragma once

#include <string>

// Begins an edit: forgets the last refusal.
void pkv_reason_clear();

// Refuses an edit: keeps and logs the reason. Always false, so that a guard can `return pkv_refuse(...)`.
#ifdef __GNUC__
__attribute__((format(printf, 1, 2)))
#endif
bool pkv_refuse(const char * fmt, ...);

const std::string & pkv_reason();
