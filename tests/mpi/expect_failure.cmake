# cmake -DCOMMAND=a;b;c -DEXIT_CODE=64 -DTEXT=regex -P expect_failure.cmake
# Passes if the command ends by itself with that exit code and prints matching text. Of two ranks whose calls differ,
# both must report the same error, which names the lower rank first: only one of them may be read.
execute_process(COMMAND ${COMMAND} TIMEOUT 300 RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT code STREQUAL EXIT_CODE)
  message(FATAL_ERROR "exit code ${code}, expected ${EXIT_CODE}\n${output}")
endif()
if(NOT output MATCHES "${TEXT}")
  message(FATAL_ERROR "no \"${TEXT}\" in\n${output}")
endif()
string(REGEX MATCHALL "rank [0-9]+ calls [^\n,]*, rank [0-9]+ calls" pairs "${output}")
foreach(pair ${pairs})
  if(pair MATCHES "rank ([0-9]+) .*rank ([0-9]+) " AND CMAKE_MATCH_1 GREATER CMAKE_MATCH_2)
    message(FATAL_ERROR "rank ${CMAKE_MATCH_1} is named before rank ${CMAKE_MATCH_2} in\n${output}")
  endif()
endforeach()
