# cmake -DCOMMAND=a;b;c -DEXIT_CODE=64 -DTEXT=regex -P expect_failure.cmake
# Passes if the command ends by itself with that exit code and prints matching text.
execute_process(COMMAND ${COMMAND} TIMEOUT 300 RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT code STREQUAL EXIT_CODE)
  message(FATAL_ERROR "exit code ${code}, expected ${EXIT_CODE}\n${output}")
endif()
if(NOT output MATCHES "${TEXT}")
  message(FATAL_ERROR "no \"${TEXT}\" in\n${output}")
endif()
